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
