r"""Notations in which neighbours, order or context change the value, by generation: congruences, inverses ..."""

from __future__ import annotations

from itertools import product

from posttrain.rewards import math


def paid(gold: str, *answers: str) -> list[str]:
    """The answers that are accepted, each of them in a box."""
    return [answer for answer in answers if math(f"\\boxed{{{answer}}}", gold) == 1.0]


# congruences

MODULI = (r"\pmod {}", r"\pmod{{{}}}", r"\ (\bmod\ {})", r"(\text{{mod }} {})", r" (mod {})", r" \mod {}", r"\bmod {}")


def test_a_congruence_has_its_residue_and_its_modulus():
    congruences = [r"x \equiv {}" + modulus for modulus in MODULI] + ["x ≡ {} (mod {})"]
    for residue, modulus in product((0, 3, 6), (7, 11)):
        golds = [form.format(residue, modulus) for form in congruences]
        others = (residue + 1, modulus), (residue, modulus + 1), (residue, 2 * modulus), (residue - 2, modulus)
        wrong = [form.format(*other) for other in others for form in congruences]
        wrong += [str(residue), f"x={residue}", rf"x\equiv{residue}", golds[0].replace("x", "y")]
        for gold in golds:
            assert paid(gold, *golds, *wrong) == golds, gold
            assert paid(gold, rf"{residue - modulus} \pmod {{{modulus}}}", rf"{residue} \pmod{{{modulus}}}")
        assert paid(str(residue), *golds) == []


def test_a_residue_that_is_not_reduced_is_no_answer():
    """It would repeat the question: 1234567 modulo 11."""
    assert paid(r"x\equiv 4\pmod 9", r"x\equiv 13\pmod 9", r"x\equiv -14\pmod 9") == []
    assert paid(r"x\equiv 13\pmod 9", r"x\equiv 4\pmod 9", r"x\equiv 22\pmod 9") == [
        r"x\equiv 4\pmod 9",
        r"x\equiv 22\pmod 9",
    ]


def test_the_left_side_of_a_congruence_counts():
    assert paid(r"2x\equiv 4\pmod 9", r"2x\equiv 4 \mod 9", r"x\equiv 4\pmod 9", r"4\pmod 9") == [r"2x\equiv 4 \mod 9"]
    assert paid(r"x\equiv 1\pmod 5 \text{ or } x\equiv 4\pmod 5", r"x\equiv 4\mod 5, x\equiv 1\mod 5", "1,4") == [
        r"x\equiv 4\mod 5, x\equiv 1\mod 5"
    ]


# formulas that agree only on one side of a number, or between integers


def test_a_formula_that_is_right_on_one_side_of_a_number_is_wrong():
    for at in (3, 5, 40, 500, 2000):
        for gold, right, wrong in (
            (f"|x-{at}|", rf"\sqrt{{x^2-{2 * at}x+{at * at}}}", f"{at}-x"),
            (f"|x+{at}|", f"|-{at}-x|", f"x+{at}"),
            (rf"\sqrt{{x^2+{2 * at}x+{at * at}}}", f"|x+{at}|", f"x+{at}"),
            (rf"\ln|x-{at}|+C", rf"\ln|{at}-x|+C", rf"\ln({at}-x)+C"),
        ):
            assert paid(gold, right, wrong) == [right], gold


def test_large_numbers_that_cancel_do_not_make_a_formula_wrong():
    assert paid(r"\cosh^2 x-\sinh^2 x+\sin x", r"1+\sin x", r"1+\sin x+10^{-30}") == [r"1+\sin x"]
    assert paid(r"\sin^2 x", r"1-\cos^2 x") == [r"1-\cos^2 x"]


def test_floors_and_ceilings_of_integers_are_compared_at_integers():
    for d in (2, 3, 7, 100, 1000):
        floor, ceil = (
            rf"\left\lfloor\frac{{n+{d - 1}}}{{{d}}}\right\rfloor",
            rf"\left\lceil\frac{{n}}{{{d}}}\right\rceil",
        )
        wrong = (
            rf"\lfloor\frac{{n}}{{{d}}}\rfloor+1",
            rf"\lfloor\frac{{n+{d - 2}}}{{{d}}}\rfloor",
            rf"\frac{{n}}{{{d}}}",
        )
        assert paid(ceil, floor, *wrong) == [floor]
        assert paid(ceil.replace("n", "x"), floor.replace("n", "x")) == []  # x need not be an integer
    assert paid(r"\lfloor\sqrt{n}\rfloor", r"\lceil\sqrt{n}\rceil-1", r"\lceil\sqrt{n+1}\rceil-1") == [
        r"\lceil\sqrt{n+1}\rceil-1"
    ]
    assert paid(r"\lceil x\rceil", r"-\lfloor -x\rfloor", r"\lfloor x\rfloor+1", "x") == [r"-\lfloor -x\rfloor"]
    assert paid(r"\lfloor\frac{m+n}{2}\rfloor", r"\lceil\frac{m+n-1}{2}\rceil", r"\lfloor\frac m2\rfloor+\frac n2") == [
        r"\lceil\frac{m+n-1}{2}\rceil"
    ]


# inverse functions


def test_the_exponent_minus_one_of_a_function_is_its_inverse():
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
        inverse, reciprocal = rf"\{name}^{{-1}} x", rf"\frac{{1}}{{\{name} x}}"
        assert paid(inverse, inverse, reciprocal, rf"(\{name} x)^{{-1}}", rf"\{name} x") == [inverse]
        assert paid(reciprocal, inverse, rf"(\{name} x)^{{-1}}") == [rf"(\{name} x)^{{-1}}"]
        assert paid(rf"\frac{{1}}{{\{name}^2 x}}", rf"\{name}^{{-2}} x") == [rf"\{name}^{{-2}} x"]
    for name in ("sin", "cos", "tan"):
        for argument in ("x", "(2x)", r"\frac13"):
            spelled = rf"\{name}^{{-1}} {argument}", rf"{name}^-1 {argument}", rf"\{name}⁻¹ {argument}"
            assert paid(rf"\arc{name} {argument}", *spelled) == list(spelled)
    assert paid(r"\sec^{-1} 3", r"\cos^{-1}\frac13", r"\sin^{-1}\frac13") == [r"\cos^{-1}\frac13"]


# neighbours


def test_numbers_beside_letters_do_not_change_places():
    forms = (
        r"{}^\circ {}'", r"{}^{{\circ}}{}^\prime",
        "{}°{}′", "{} R {}", "{}C{}", "{}h{}m", r"{}\text{{ h }}{}\text{{ min}}",
        r"{}\text{{ feet }}{}\text{{ inches}}", "{}P{}", "{} r{}", "{}:{}", "{}e{}",
    )  # fmt: skip
    for form in forms:
        for one, other in ((45, 30), (3, 8), (5, 2)):
            gold = form.format(one, other)
            wrong = form.format(other, one), str(one * other), str(one + other), rf"\frac{{{one}}}{{{other}}}"
            assert paid(gold, gold, *wrong) == [gold]
    spellings = [r"45^{\circ}30^{\prime}", "45°30′", r"45^\circ\,30'", r"45^\circ30^\prime"]
    assert paid(r"45^\circ 30'", *spellings) == spellings


def test_the_vertex_of_an_angle_stays_in_the_middle():
    assert paid(r"\angle ABC", r"\angle CBA", r"\angle{ABC}", r"\angle BAC", r"\angle ACB", "ABC") == [r"\angle CBA"]
    assert paid(r"2\angle ABC+\angle D", r"\angle D+2\angle CBA", r"\angle B+2\angle DAC") == [r"\angle D+2\angle CBA"]
    assert paid(r"\angle ABC=30^\circ", r"\angle CBA=30", r"\angle BAC=30") == [r"\angle CBA=30"]


def test_a_cross_product_does_not_commute():
    for left, right in (
        (r"\vec a", r"\vec b"), (r"\vec{u}_1", r"\vec{v}_1"), (r"\mathbf{a}", r"\mathbf{b}"),
        (r"\mathbf a", r"\mathbf b"),
        (r"\boldsymbol{a}_1", r"\boldsymbol{a}_2"), (r"\hat{i}", r"\hat{j}"), (r"(\vec a+\vec b)", r"\vec c"),
    ):  # fmt: skip
        assert paid(rf"{left}\times{right}", rf"{left}×{right}", rf"{right}\times{left}") == [rf"{left}×{right}"]
        assert paid(rf"{left}\cdot{right}", rf"{right}\cdot{left}") == [rf"{right}\cdot{left}"]
    assert paid(r"2\times x\times y", r"y\times x\times 2") == [r"y\times x\times 2"]
