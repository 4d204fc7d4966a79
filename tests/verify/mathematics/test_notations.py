r"""Notations in which neighbours, order or context change the value, by generation: congruences, inverses ..."""

from __future__ import annotations

import time
from itertools import product

from posttrain.rewards import gsm8k, math


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


# lists with names or units

LABELLED = (
    ("x={}, y={}", "y={1}, x={0}"), ("a={} and b={}", "b={1} and a={0}"),
    (r"\text{{mean}}={}, \text{{median}}={}", r"\text{{median}}={1}, \text{{mean}}={0}"),
    (r"{}\text{{ apples and }}{}\text{{ pears}}", r"{1}\text{{ pears}}, {0}\text{{ apples}}"),
    (r"{}\text{{ cm}}, {}\text{{ kg}}", r"{1}\text{{ kg}}, {0}\text{{ cm}}"),
    ("f(1)={}, f(2)={}", "f(2)={1}, f(1)={0}"),
)  # fmt: skip


def test_an_answer_that_leaves_the_names_out_is_in_their_order():
    for form, turned in LABELLED:
        for one, other in ((3, 4), (7, 2)):
            gold = form.format(one, other)
            right = [gold, turned.format(one, other), f"{one}, {other}"]
            wrong = [form.format(other, one), turned.format(other, one), f"{other}, {one}"]
            assert paid(gold, *right, *wrong) == right
    assert paid("x=1, x=2", "2, 1", "x=2, x=1") == ["2, 1", "x=2, x=1"]
    assert paid(r"3\text{ cm}, 5\text{ cm}", "5, 3") == ["5, 3"]
    assert paid("a=1,b=2,c=3", "1,2,3", "3,2,1", "1,3,2") == ["1,2,3"]


def test_a_point_does_not_turn_coordinates_around():
    for one, other in ("xy", "xz", "yz", "uv", "XY"):
        assert paid("(1,2)", f"({one},{other})=(1,2)", f"({other},{one})=(1,2)") == [f"({one},{other})=(1,2)"]
        assert paid("(2,1)", f"({other},{one})=(1,2)") == []
        solutions = f"{one}=1,{other}=2;{one}=3,{other}=4"
        turned = f"{other}=2,{one}=1;{other}=4,{one}=3"
        assert paid(solutions, turned, f"{other}=1,{one}=2;{other}=3,{one}=4", "(1,2),(3,4)") == [turned, "(1,2),(3,4)"]


def test_letters_that_are_no_coordinates_are_in_any_order():
    """Questions ask for (m,b), (r,s,k) or (w,h)."""
    points = ("m,b", "b,m", "r,s,k", "t,s", "w,h", "n,k", r"\rho,\theta,\phi", "b,a", "x,a", "y,k", "q,p,r")
    for letters in points:
        values = ",".join(str(place) for place in range(5, 5 - len(letters.split(",")), -1))
        turned = ",".join(reversed(values.split(",")))
        assert paid(f"({values})", f"({letters})=({values})", f"({letters})=({turned})") == [f"({letters})=({values})"]
    turns = ("y,x", "z,y", "z,x,y", "y,x,z", "v,u", "w,v,u", "Y,X")
    for letters in turns:
        values = ",".join(str(place) for place in range(len(letters.split(","))))
        assert paid(f"({values})", f"({letters})=({values})") == []


# dates and double factorials


def test_integers_with_signs_and_no_spaces_between_them_are_text():
    for text, value in (
        ("2024-01-05", "2018"), ("1/2/2024", r"\frac{1}{4048}"), ("555-1234", "-679"), ("12-25", "-13"), ("3-2", "1"),
        ("01/02", r"\frac12"), ("1-800-555", "-1354"), ("10/11/12", r"\frac{10}{132}"),
    ):  # fmt: skip
        assert paid(text, text, rf"\text{{{text}}}", value, text[::-1]) == [text, rf"\text{{{text}}}"]
        assert paid(rf"\text{{{text}}}", text, value) == [text]
        assert paid(value, text) == []
    assert paid("2024-01-05, 2024-02-06", "2024-02-06, 2024-01-05", "2018, 2016") == ["2024-02-06, 2024-01-05"]
    assert paid("5 - 3", "2") == ["2"]
    assert paid("1/2", "0.5", "2/4") == ["0.5", "2/4"]


def test_two_exclamation_marks_are_the_double_factorial():
    for n, value in ((3, 3), (5, 15), (6, 48), (7, 105), (8, 384)):
        assert paid(f"{n}!!", str(value), f"({n}!)!", f"{n}!", f"{n}!!!") == [str(value)]
        assert paid(str(value), f"{n}!!") == [f"{n}!!"]
    assert paid("(3!)!", "720") == ["720"]
    assert paid("n!!+1", "1+n!!", "n!+1") == ["1+n!!"]


def test_factorials_of_integers_are_compared_at_integers():
    for n in "jkmnN":
        gold, odd = f"({{2{n}}})!!", f"(2{n}-1)!!"
        right = [f"2^{{{n}}} {n}!", f"{n}!\\cdot 2^{{{n}}}", rf"\frac{{(2{n})!}}{{{odd}}}"]
        wrong = [f"2^{{{n}}} {n}!+1", f"{n}!!", f"2^{{{n}}} {n}!!", f"(2{n})!", odd, f"2^{{{n}-1}} {n}!"]
        assert paid(gold, *right, *wrong) == right, n
    assert paid("(2x)!!", "2^x x!", "x!!") == []  # x need not be an integer
    assert paid("(x+1)!", "(x+1)x!", "x!") == ["(x+1)x!"]


def test_double_factorials_take_no_seconds():
    for answer, gold in (("(2k)!!", "n!!"), ("(2n)!!", "n!!"), ("(2n)!!", "2^n n!")):
        start = time.process_time()
        paid(gold, answer)
        assert time.process_time() - start < 2, gold


# words and signs that change a number

PARTS = (
    "halves", "thirds", "fourths", "fifths", "sixths", "sevenths", "eighths", "ninths", "tenths", "elevenths",
    "twelfths", "thirteenths", "twentieths", "fortieths", "hundredths", "thousandths", "millionths",
)  # fmt: skip


def test_parts_bounds_and_signs_change_a_number():
    changed = [*(f"7 {part}" for part in PARTS), *(f"7 and two {part}" for part in PARTS)]
    changed += ["7 and a half", "7 and one quarter", "7‰", "7…", "7 per mille", "half 7", "<7", ">7", "≤7"]
    changed += ["7 (negative)", "7 (approximately)", "7 with a minus sign", "7 negative", "7 minus tax", "7 minus x"]
    plain = ["7 sixth graders", "7 months", "7 half-dollars", "7 books and pens", "7 (eggs)", "7 per day", "> 7"]
    for prefix in ("", "#### "):
        assert [said for said in changed if gsm8k(prefix + said, "7", answer_from="last_line") == 1.0] == []
        assert [said for said in plain if gsm8k(prefix + said, "7", answer_from="last_line") != 1.0] == []
    assert paid("7", r"7\text{ per cent}", r"7\text{ tenths}", r"7\text{ halves}") == []
    assert paid(r"7\%", r"7\text{ per cent}", "0.07") == [r"7\text{ per cent}", "0.07"]


def test_words_for_parts_and_signs_that_belong_to_other_words_change_nothing():
    kinds = ("negative numbers", "negative integers", "positive roots", "minus signs", "negative real roots")
    plain = [f"{said} 7 {kind}." for said in ("There are", "It took", "She found") for kind in kinds]
    times = [f"the {which} {part}" for which in ("first", "second", "last", "next") for part in ("half", "quarter")]
    plain += [f"In {time} 7 games were won." for time in [*times, "this quarter", "each half"]]
    plain += [f"In {time} 7." for time in times] + [rf"In the {nth} quarter \boxed{{7}}." for nth in ("1st", "4th")]
    plain += ["The final answer is 7 and the half-life is long.", "It is 7 and the quarters are long."]
    assert [said for said in plain if gsm8k(said, "7", answer_from="last_line") != 1.0] == []
    changed = [
        "It is half 7.",
        "It is a quarter 7.",
        "It is 7 and three quarters.",
        "It is 7 and thirty-one hundredths.",
    ]
    changed += ["It is 7 negative.", "It is 7 (negative).", "It is 7 (minus).", "It is 7, or 7 negative."]
    changed += ["The answer is 7 negative.", "The answer is 7 minus tax.", "The answer is 7 and a half."]
    assert [said for said in changed if gsm8k(said, "7", answer_from="last_line") == 1.0] == []
    assert gsm8k("The answer is 7 negative integers.", "7") == 1.0


def test_a_dozen_is_twelve_or_a_unit():
    for number in (2, 3, 7):
        for said in (f"#### {number} dozen", f"She needs {number} dozen eggs.", f"The answer is {number} dozen."):
            paid_for = [gold for gold in range(1, 100) if gsm8k(said, str(gold), answer_from="last_line") == 1.0]
            assert paid_for == [number, 12 * number], said
        dozens = rf"{number}\text{{ dozen}}"
        assert paid(dozens, str(12 * number), str(number), dozens) == [str(12 * number), dozens]
        assert paid(str(number), dozens, rf"{number}\text{{ million}}", rf"{number}\text{{ hundred}}") == [dozens]
        assert paid(rf"{number}\text{{ eggs}}", rf"{number}\text{{ dozen eggs}}", dozens) == []
