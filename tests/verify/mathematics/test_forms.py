r"""The forms in which models write one value, by generation: characters, infinities, names, units, multiples, sums."""

from __future__ import annotations

import unicodedata
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.errors import ConfigError, DataError
from posttrain.rewards import aime, gsm8k, math, math500, math_lenient, numeric, svamp
from posttrain.verify.mathematics.sentences import contradicts
from posttrain.verify.mathematics.units import UNITS, split_unit

VERIFIERS = (math, math500, math_lenient, gsm8k, svamp, numeric, aime)


def boxed(text: object) -> str:
    return f"\\boxed{{{text}}}"


def paid(gold: str, *answers: str, by=math) -> list[str]:
    """The answers that are accepted, each of them in a box."""
    return [answer for answer in answers if by(boxed(answer), gold) == 1.0]


# characters


def digit_like() -> list[str]:
    """Every character outside ASCII whose compatible spelling contains a digit, except those that are the same digit in
    another typeface."""
    found = []
    for code in range(0x80, 0x20000):
        spelled = unicodedata.normalize("NFKC", chr(code))
        mark = unicodedata.decomposition(chr(code)).partition(" ")[0]
        if any(c in "0123456789" for c in spelled) and mark not in ("<font>", "<wide>", "<narrow>", "<fraction>"):
            found.append(chr(code))
    return found


def test_no_character_beside_a_number_becomes_a_digit_of_it():
    """Neither `7₂` nor `7²` nor `7②` is 72, and a ② alone is not 2."""
    characters = digit_like()
    assert len(characters) > 150
    for char in characters:
        digits = "".join(c for c in unicodedata.normalize("NFKC", char) if c.isdigit())
        for written, verify in product((f"7{char}", char), (math, gsm8k)):
            value = written.replace(char, digits)
            for completion in (boxed(written), f"The answer is {written}."):
                assert verify(completion, value) != 1.0, (completion, value)
    for char in "₀₁₂₃₉⁰¹²³⁹":
        assert math(f"\\boxed{{7}}{char}", "7") == 0.0


def test_subscripts_are_subscripts():
    for n, subscript in enumerate("₀₁₂₃₄₅₆₇₈₉"):
        assert paid(f"x_{n}", f"x{subscript}", f"x_{{{n}}}", f"x{n}", f"x^{n}") == [f"x{subscript}", f"x_{{{n}}}"]
        assert paid(f"101_{n}", f"101{subscript}", f"101{n}") == [f"101{subscript}"]
    assert paid("a_{12}", "a₁₂", "a₁2") == ["a₁₂"]
    assert paid("x^{-1}", "x⁻¹") == ["x⁻¹"]


def test_a_digit_in_another_type_is_that_digit():
    assert paid("7", "７", "𝟕", "𝟳", "𝟽", "7") == ["７", "𝟕", "𝟳", "𝟽", "7"]
    assert paid("7", "٧", "७", "Ⅶ") == []


# intervals

INFINITIES = ("\\infty", "+\\infty", "∞", "+∞", "{+}\\infty", "+ \\infty")
INTERVALS = (
    "(2,{})", "[2,{})", "(-\\infty,{})", "(-\\infty,-2)\\cup(2,{})", "(0,1)\\cup(1,{})", "(-\\infty,0]\\cup[5,{})",
)  # fmt: skip


@catalogue("interval", INTERVALS)
def test_infinity_may_have_its_sign(interval):
    for gold in INFINITIES:
        answers = [interval.format(infinity) for infinity in INFINITIES]
        assert paid(interval.format(gold), *answers) == answers
        assert paid(interval.format(gold), *(interval.format(n) for n in ("10^9", "x", "\\infty+1i"))) == []
    shifted = interval.replace("2", "4").replace("0", "6").replace("(-\\infty,{}", "(3,{}")
    assert paid(interval.format("+\\infty"), shifted.format("\\infty")) == []


def test_infinity_has_a_sign():
    assert paid("\\infty", "+\\infty", "-\\infty") == ["+\\infty"]
    assert paid("(-\\infty,+\\infty)", "\\mathbb{R}") == ["\\mathbb{R}"]
    assert paid("|x|>2", "(-\\infty,-2)\\cup(2,+\\infty)") == ["(-\\infty,-2)\\cup(2,+\\infty)"]


# names

NAMES = (
    "m+n", "a+b+c", "p-q", "abc", "xy", "x^2+y^2", "P(2)", "f(2)", "Q(x)", "P(X=2)", "P(A|B)", "P(A\\cap B)", "N",
    "a_3", "S_{10}", "\\angle ABC", "|AB|", "\\text{Area}", "\\sin x", "\\cos\\theta", "\\tan A", "\\ln x", "\\log_2 x",
    "\\max f(x)", "\\lim_{x\\to0}f(x)", "\\frac{AB}{CD}",
)  # fmt: skip
"""Names that an answer may give to its value."""
VALUES = ("204", "7", "\\frac12", "-3", "0.25")


@catalogue("value", VALUES)
def test_a_named_result_is_the_result(value):
    named = [f"{name}={value}" for name in NAMES]
    assert paid(value, *named) == named
    assert paid(f"{value}1", *named) == []
    assert paid(value, *(f"{value}={name}" for name in ("x", "m+n"))) == [f"{value}=x", f"{value}=m+n"]


def test_an_equation_of_one_letter_says_what_the_letter_is():
    """`2x = 5` determines x, and does not give the value 5."""
    for left in ("2x", "x+1", "2x+1", "x^2", "\\sqrt{x}", "x!", "2x+3y", "m+n+1", "x/2", "2(x+y)"):
        assert paid("5", f"{left}=5") == [], left


def test_a_gold_may_be_named():
    for name in ("f(2)", "P(2)", "x", "a_3", "f(x)", "N"):
        assert paid(f"{name}=5", "5", f"{name}=5", "6", f"{name}=6") == ["5", f"{name}=5"]
    assert paid("f(2)=5", "f(3)=5", "g(2)=5") == []
    assert paid("x+y=5", "5", "y=5-x") == ["y=5-x"]  # a line


def test_words_may_announce_the_answer_within_its_box():
    for label in (
        "The answer is",
        "Answer:",
        "The final answer is:",
        "So the area is",
        "Total:",
        "Thus, the sum equals",
    ):
        for completion in (
            f"\\text{{{label} }} 7", f"\\text{{{label} 7}}", f"{label} 7", f"\\text{{{label} }}\\frac{{14}}{{2}}",
        ):  # fmt: skip
            assert paid("7", completion) == [completion]
            assert paid("8", completion) == []
    assert (
        paid("7", r"\text{The answer is not } 7", r"\text{The answer is } 7 \text{ or } 8", r"\text{I doubt } 7") == []
    )


# units


def latex_of(unit: str) -> list[str]:
    """The ways to write a unit such as `m/s^2` in LaTeX."""
    above, _, below = unit.partition("/")
    ways = [
        f"\\ \\mathrm{{{unit}}}",
        f"\\,\\text{{{unit}}}",
        f" \\text{{ {unit}}}",
        f"~\\rm {unit}",
        f"\\ \\si{{{unit}}}",
    ]
    if below:
        base, power = [*below.split("^"), "1"][:2]
        raised = f"\\mathrm{{{base}}}" + (f"^{power}" if power != "1" else "")
        ways += [
            f"\\ \\frac{{\\text{{{above}}}}}{{\\text{{{base}}}^{power}}}",
            f"\\ \\mathrm{{\\frac{{{above}}}{{{below}}}}}",
            f"\\ \\mathrm{{{above}}}/{raised}",
            f"\\ \\mathrm{{{above}\\,{base}^{{-{power}}}}}",
            f"\\ \\text{{{above}}}\\cdot\\text{{{base}}}^{{-{power}}}",
            f" {unit}",
        ]
    return ways


@catalogue("unit", ["m", "kg", "m/s", "m/s^2", "km/h", "g/mol", "J/K", "cm^2", "kPa", "Hz", "eV", "mol/L"])
def test_a_unit_is_read_in_every_form(unit):
    ways = [f"9.8{way}" for way in latex_of(unit)]
    assert paid("9.8", *ways) == ways
    assert paid("9.9", *ways) == []
    for gold in ways:
        assert paid(gold, "9.8", *ways) == ["9.8", *ways]
        assert paid(gold, r"9.8\ \text{miles}", "9.7", r"9.8\ \mathrm{mg/h}") == []


@catalogue(
    "group",
    [
        (r"\Omega", r"\ \Omega", r"\,\text{ohms}", r"\ \mathrm{\Omega}"),
        (r"°C", r"^\circ C", r"^{\circ}\mathrm{C}", r"\,^\circ\text{C}", r"\text{ degrees Celsius}", r" °C"),
        (r"\ \text{k}\Omega", r"\ \mathrm{k\Omega}", r"\text{ kilohms}"),
        (r"\ \mu\text{m}", r"\ \mathrm{\mu m}", r"\ \text{µm}", r"\text{ micrometers}"),
        (r"\ \text{J/(kg·K)}", r"\ \mathrm{J\,kg^{-1}\,K^{-1}}", r"\ \frac{\text{J}}{\text{kg}\cdot\text{K}}"),
        (r"\ \text{m/s}^2", r"\ \text{meters per second squared}", r"\text{ m/s²}"),
        (r"\text{ miles per hour}", " miles per hour", " miles/hour", " mph", r"\text{ mph}", r"\ \text{mi}/\text{h}"),
        (" kilometers per hour", " km per hour", r"\text{ km/h}", " kph", r"\ \mathrm{km\,h^{-1}}"),
        (r"\text{ square centimeters}", r"\text{ cm}^2", r"\text{ sq. cm}", r"\ \mathrm{cm^2}"),
    ],
)  # fmt: skip
def test_spellings_of_one_unit_are_one_unit(group):
    for gold in group:
        answers = [f"20{other}" for other in group]
        assert paid(f"20{gold}", *answers) == answers
        assert paid(f"20{gold}", r"20\ \text{lb}", r"20°F") == []


def test_variables_are_no_units():
    for answer in (
        "5m",
        "5 m",
        "5x",
        r"5\frac{m}{s}",
        r"5\mu",
        "5mn",
        r"5\Omega_1",
        r"5\mathrm{e}",
        r"5\mathrm{i}",
        "5s^2",
    ):
        assert paid("5", answer) == [], answer
        assert split_unit(answer) is None or "Omega" in answer
    assert paid("5", "5 per", "5 per cent") == []
    squared = ["60 mph squared", "60 miles per hour squared", r"60\text{ mph}^2"]
    assert paid("60 mph", *squared, "60 mph") == ["60 mph"]
    assert paid("3 ft", "3 feet squared", "3 feet", "3 feet squared squared") == ["3 feet"]
    assert paid(r"5\pi", r"5\pi\ \text{cm}") == [r"5\pi\ \text{cm}"]


def test_every_unit_is_read_behind_a_number():
    for spelling in UNITS:
        if spelling.isascii() and spelling.isalpha():
            assert paid("12", f"12\\text{{ {spelling}}}") == [f"12\\text{{ {spelling}}}"], spelling


# multiples


@pytest.mark.parametrize(
    ("word", "factor"), [("hundred", 100), ("thousand", 1000), ("million", 10**6), ("billion", 10**9)]
)
def test_a_million_is_a_number(word, factor):
    for number in ("1", "2", "1.5", "12"):
        value = Fraction(number) * factor
        for written in (f"{number}\\text{{ {word}}}", f"{number} {word}", f"\\${number}\\text{{ {word}}}"):
            for gold, answer in ((written, str(value)), (str(value), written), (written, written)):
                assert math(boxed(answer), gold) == 1.0, (gold, answer)
            assert math(boxed(number), written) == math(boxed(written), number) == 0.0
        for verify in (gsm8k, numeric):
            said = f"The answer is {number} {word} dollars."
            assert verify(said, str(value)) == verify(f"#### {value}", f"{number} {word}") == 1.0
            assert verify(said, number) == 0.0


# arithmetic


@given(st.integers(1, 99), st.integers(1, 99), st.sampled_from("+-*/"), st.integers(-50, 200))
def test_a_false_computation_pays_nothing(a, b, sign, claimed):
    """The left side is computed, whatever follows the equals sign."""
    result = {"+": Fraction(a + b), "-": Fraction(a - b), "*": Fraction(a * b), "/": Fraction(a, b)}[sign]
    for symbol in {"*": "*×x", "/": "/÷", "+": "+", "-": "-−"}[sign]:
        for said in (f"{a} {symbol} {b} = {claimed}", f"So she has {a} {symbol} {b} = {claimed} left."):
            for verify in (math, gsm8k, numeric):
                assert verify(said, str(claimed)) == float(result == claimed), said


@pytest.mark.parametrize("verify", [gsm8k, numeric, svamp, math])
def test_a_false_computation_is_found_in_each_place(verify):
    for said in (
        "12 - 10 = 1", "So she has 12 - 10 = 1 left.", "The answer is 12 - 10 = 1.", "#### 12 - 10 = 1",
        "$12 - 10 = 1$", r"\[12-10=1\]", "x = 12 - 10 = 1", "12 minus 10 is 1", "12 - 10 gives 1", "$12 - $10 = $1",
        "(12 - 2) - 8 = 1", "10% of 20 = 1", r"\boxed{12-10=1}", "<answer>12 - 10 = 1</answer>",
        r"\frac{24}{2} - 10 = 1",
    ):  # fmt: skip
        assert verify(said, "1") == 0.0, said
    for said in (
        "2 - 1 = 1",
        "So 2 - 1 = 1 is left.",
        "10% of 10 = 1",
        "#### 2 - 1 = 1",
        r"\boxed{2-1=1}",
        "n - 10 = 1",
    ):
        assert verify(said, "1") == 1.0 or said.startswith("n"), said
    assert verify("That makes 9 * 2 = $18 every day.", "18") == 1.0
    assert verify("It is 4 * 2 / 12 = 0.67 miles.", "0.67") == 1.0  # rounded
    assert verify("It is 4 * 2 / 12 = 0.76 miles.", "0.76") == 0.0


def test_what_is_no_computation_is_not_worked_out():
    for said in ("a - 10 = 1", "4x + 12 - 10 = 1", "x2 - 10 = 1", "7 / 2 = 3 remainder 1", "3 dogs * 6 = 1"):
        assert contradicts(said, said.rindex("=") + 2) == ""
    assert contradicts("1" * 400 + " + 1 = 2", 407) == ""


# references


def test_the_number_of_a_step_is_no_answer():
    nouns = "Step Question Problem Exercise Task Part Case Chapter Section Page Figure Table Equation Example Line Hint"
    for noun in nouns.split():
        for said in (
            f"{noun} 7",
            f"{noun} 7:",
            f"### {noun} 7",
            f"**{noun} 7.**",
            f"See {noun.lower()} 7.",
            f"{noun} No. 7",
        ):
            for verify in (math, gsm8k, numeric, math500):
                assert verify(said, "7") == 0.0, said
        assert gsm8k(f"{noun} 3: so it is 7", "7") == gsm8k(f"{noun} 3\nThe answer is 7", "7") == 1.0


# where the answer is

STOOD = {
    "box": (
        r"So \boxed{7}.",
        r"I doubt \boxed{7}, maybe 8",
        r"The answer is 8, or \boxed{7}",
        r"\boxed{7} \boxed{7.0}",
    ),
    "tag": ("<answer>7</answer>", "8? <answer> 7 </answer> 9", r"<answer>\boxed{7}</answer>", "<answer>x = 7</answer>"),
    "last_line": (
        *("8\n7", "It is 8.\n#### 7", "Maybe 8\nThe answer is 7.", "8\n\\boxed{7}", "8\n\\[\n7\n\\]\n"),
        *("8\n<answer>\n7\n</answer>", "<answer>\n\n7</answer>\n", "<ANSWER>7\n</ANSWER>\n**", "<b>\n7\n</b>"),
        *("<answer>8</answer>\n<answer>\n7\n</answer>", "<answer>\n$$\n7\n$$\n</answer>", "7\n</solution>\n</p>"),
        *("The <answer> tag holds it.\n<answer>\n7\n</answer>", "<answer>\n\\boxed{7}\n</answer>"),
    ),
}


@catalogue("verify", VERIFIERS)
def test_the_answer_is_read_from_where_it_is_said_to_stand(verify):
    for place, completions in STOOD.items():
        for completion in completions:
            assert verify(completion, "7", answer_from=place) == 1.0, (place, completion)
            assert verify(completion, "9", answer_from=place) == 0.0, (place, completion)
    for completion in (
        "The answer is 7.",
        "#### 7",
        "7",
        "<answer>7</answer>",
        r"\boxed{8} \boxed{7}",
        r"\boxed{7",
        "",
    ):
        assert verify(completion, "7", answer_from="box") == 0.0, completion
    for completion in (r"\boxed{7}", "7", "<answer>7</answer><answer>8</answer>", "<answer></answer>"):
        assert verify(completion, "7", answer_from="tag") == 0.0, completion
    for completion in (
        *(r"\boxed{7}, as I said", "7\nI hope so", "7 or 8", "#### 7\n8", "Step 7", "<answer>\n8\n7\n</answer>"),
        *("<answer>\n7\n8\n</answer>", "<answer>\n8\n</answer> 7", "<answer>7\n</answer><answer>8\n</answer>"),
        *("<answer>\n7\n</answer>\n8", "<answer>\nnot 7\n</answer>", "7\n<answer>\n</answer>", "7\n</b> or 8"),
        *("<answer>\n7\n</answer>\nThe answer is 8", "7 <answer>\n8</answer>", "<answer>\n8\n</answer> or 7"),
    ):
        assert verify(completion, "7", answer_from="last_line") == 0.0 or completion.startswith("\\boxed"), completion


def test_reasoning_is_never_the_answer():
    for place, completion in (("box", r"\boxed{7}"), ("tag", "<answer>7</answer>"), ("last_line", "7")):
        assert math(f"<think>{completion}</think>", "7", answer_from=place) == 0.0
        assert math(f"<think>8</think>{completion}", "7", answer_from=place) == 1.0


def test_a_place_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="answer_from = 'boxed'; allowed: box, tag, last_line, anywhere"):
        math(r"\boxed{7}", "7", answer_from="boxed")
    with pytest.raises(DataError):
        math(r"\boxed{7}", "", answer_from="box")
