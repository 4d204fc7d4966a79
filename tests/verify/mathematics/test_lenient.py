r"""`math_lenient` and each of its options: the answers that it accepts by definition, and that it accepts no others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.catalogue import catalogue, few
from tests.rewards.battery import OWN, PUBLISHED
from tests.rewards.sayings import BOXED_WRONG, OTHER_WRONG, SAID_WRONG

from posttrain.errors import ConfigError
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.presets import math, math_lenient

PAID = {
    "51 ne_approx_third": "rounded_places",
    "pi_decimal": "rounded_places",
    "root_decimal": "rounded_places",
    "third_long": "rounded_places",
    "63 ch_two_final2": "final_statement",
    "65 ch_chain": "last_side",
    "67 ch_chain_var": "last_side",
    "restated_product": "require_evaluated",
    "restated_sum": "require_evaluated",
}
"""Rows of the battery that the conventions turn into answers, with the convention of each."""
REFUSED = {"11 eq_interval_ineq", "interval_inequality", "ray"}
"""Rows that `inequality_as_set: false` turns into wrong answers."""
SAYINGS = [
    "8 = 7", "8 - 1 = 8 = 7", "The answer is 8 = 7", "So 8 = 7.", "x ≈ 7", r"$x \approx 7$", r"\boxed{x \approx 7}",
    r"\boxed{3+4}", r"\boxed{14 \div 2}", r"\boxed{7(1)}", r"\boxed{|-7|}", r"\boxed{\lfloor 7.3\rfloor}",
]  # fmt: skip
"""Statements about a 7 that give no single answer."""


@pytest.mark.parametrize("hostile", few([False, True], False))
def test_of_the_battery_only_what_the_conventions_name_is_judged_otherwise(hostile: bool):
    """The hostile cases take nearly all the time. In `make test`, `math` judges them."""
    cases = [case for case in PUBLISHED + OWN if case.verifier == "math" and not case.missed]
    cases = [case for case in cases if case.key.split()[-1].startswith("dos_") == hostile]
    assert cases
    found = {c.key for c in cases if math_lenient(c.completion, c.gold).score != float(c.accept)}
    assert found == (set() if hostile else PAID.keys() | REFUSED)


@catalogue("key", PAID)
def test_each_of_them_takes_its_option_alone(key):
    (case,) = [case for case in PUBLISHED + OWN if case.key == key]
    option: dict[str, Any] = {PAID[key]: {"rounded_places": 2, "require_evaluated": False}.get(PAID[key], True)}
    assert math(case.completion, case.gold) == 0.0
    assert math(case.completion, case.gold, **option) == 1.0


def test_lists_hedges_and_guesses_stay_refused():
    paid = [said for said in SAID_WRONG + BOXED_WRONG if math_lenient(said, "7") == 1.0]
    assert sorted(paid) == sorted(SAYINGS)
    others = [(gold, said) for gold, said in OTHER_WRONG if math_lenient(said, gold) == 1.0]
    assert len(others) <= 6, others  # decimals, cos 0 and ln e, a point without its brackets


@catalogue(
    "option, gold, completion",
    [
        ({"last_side": True}, "7", r"\boxed{x = 3 = 7}"),
        ({"last_side": True}, "7", r"\boxed{x = 3 = 7 \approx 8}"),
        ({"last_side": True}, "7", "So it is 6, which is 7."),
        ({"last_side": True}, r"1 = \zzz = x = 7", r"\boxed{7}"),
        ({"rounded_places": 2}, r"\frac13", r"\boxed{0.33}"),
        ({"rounded_places": 2}, r"\frac{2}{3}", r"\boxed{0.667}"),
        ({"rounded_places": 2}, r"\sqrt2", r"\boxed{1.41}"),
        ({"rounded_places": 2}, r"(\frac35,\frac83]", r"\boxed{(0.6,2.6667]}"),
        ({"rounded_places": 2}, r"\frac13, \frac23", r"\boxed{0.67, 0.33}"),
        ({"bare_points": True}, "(1, 3)", r"\boxed{1, 3}"),
        ({"final_statement": True}, "7", r"$\boxed{2}$ and $\boxed{5}$. The final answer is $7$."),
        ({"every_box": True}, r"\boxed{2} ++ \boxed{5}", r"\boxed{5, 2}"),
        ({"decimal_comma": True}, "1,22", r"\boxed{1.22}"),
        ({"require_evaluated": False}, r"\begin{pmatrix}4\\6\end{pmatrix}",
         r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}+\begin{pmatrix}3\\4\end{pmatrix}}"),
        ({"require_evaluated": False}, r"\begin{pmatrix}5\\5\end{pmatrix}",
         r"\boxed{\begin{pmatrix}1&2\\3&1\end{pmatrix}\begin{pmatrix}1\\2\end{pmatrix}}"),
    ],
)  # fmt: skip
def test_an_option_allows_what_it_says(option, gold, completion):
    assert math(completion, gold) == 0.0
    assert math(completion, gold, **option) == 1.0


@catalogue(
    "gold, completion",
    [
        ("7", r"\boxed{7 = 8}"),
        ("7", r"\boxed{7 \approx 8, 9}"),
        ("7", "It is 6 which is 7 or 8."),
        ("7", "8 → 7"),
        ("7", "about 7"),
        ("7", r"\boxed{7.001}"),
        ("7", r"\boxed{6.9999}"),
        (r"\frac18", r"\boxed{0.13}"),  # 0.125 is exact
        (r"\frac{1}{98}", r"\boxed{0.01}"),  # one significant digit
        (r"\frac13", r"\boxed{0.3}"),
        (r"\frac13", r"\boxed{0.34}"),
        (r"\frac13", r"\boxed{\frac{33}{100}}"),
        (r"\pi", r"\boxed{3.15}"),
        ("(1, 3)", r"\boxed{3, 1}"),
        ("1, 3", r"\boxed{(1, 3)}"),
        ("7", r"\boxed{7}. The final answer is 8."),
        ("7", r"\boxed{8}. The final answer is 7 or 9."),
        ("7", r"\boxed{8}. I doubt that the final answer is 7."),
        ("7", r"The final answer is 7. \boxed{8}"),
        ("7", r"\boxed{6}. The final answer is 7. The final answer is 8."),
        (r"\boxed{1} no no no no no \boxed{2}", r"\boxed{1,2}"),
        ("[-2, 7]", r"\boxed{-2 \le x \le 7}"),
        (r"\begin{pmatrix}4\\6\end{pmatrix}", r"\boxed{\begin{pmatrix}4\\6\end{pmatrix}+\begin{pmatrix}0&0\end{pmatrix}}"),  # noqa: E501
    ],
)  # fmt: skip
def test_and_no_more(gold, completion):
    assert math_lenient(completion, gold) == 0.0


@catalogue(
    "gold, given",
    [
        ("|x|<3", "-3<x<3"),
        ("(-3,3)", "|x|<3"),
        ("|x|>3", r"(-\infty,-3)\cup(3,\infty)"),
        (r"0<|x|\le 2", r"[-2,0)\cup(0,2]"),
        (r"1\le|z|\le\frac32", r"z\in[-\frac32,-1]\cup[1,\frac32]"),
        (r"|x|<\sqrt2", r"(-\sqrt2,\sqrt2)"),
        (r"|x|\ge 0", r"\mathbb{R}"),
    ],
)
def test_the_bounds_of_an_absolute_value_are_those_of_its_letter_of_either_sign(gold, given):
    assert math(f"\\boxed{{{given}}}", gold) == 1.0
    assert math(r"\boxed{(3,4)}", gold) == 0.0


def test_a_decimal_comma_is_read_where_the_gold_has_a_decimal_point():
    """Lists are never right in this place, but a space still makes the text a list."""
    assert math(r"\boxed{1000,99}", "1000.99") == 1.0
    assert math(r"\boxed{1000, 99}", "1000.99") == 0.0
    assert math(r"\boxed{1,234}", "1.234") == 0.0
    assert math(r"\boxed{2,5}", "2,5") == 1.0
    assert math(r"\boxed{2.5}", "2,5") == 0.0


@catalogue("completion", ["7+", "It is 7+.", "The answer is 7+", "The answer is 7..", "It is 7...", "7.."])
def test_a_number_that_goes_on_is_no_answer(completion):
    assert math(completion, "7") == 0.0
    assert math(completion.rstrip("+.") + ".", "7") == 1.0


def test_places_below_zero_are_refused():
    with pytest.raises(ConfigError, match="rounded_places = -1"):
        Options(rounded_places=-1)
