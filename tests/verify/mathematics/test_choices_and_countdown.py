"""Multiple choice and the numbers game: which texts give one answer, and which give none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.rewards.rollouts import completion, prompt

from posttrain.errors import DataError
from posttrain.rewards import build_rewards
from posttrain.verify.mathematics.choices import multiple_choice
from posttrain.verify.mathematics.countdown import countdown

CITIES = ["Rome", "Paris", "Oslo", "Bern"]


@catalogue(
    "text",
    ["C", "(C)", "C.", "**C**", "The answer is (C).", "The correct answer is C because A is wrong.", r"\boxed{C}",
     r"\boxed{\text{(C)}}", "Answer: C) Oslo", "<answer>C</answer>", "<think>B?</think>C", "I go through them.\n\nC",
     "The correct option is C.", r"$\boxed{\textbf{(C)}\ Oslo}$", "The answer is Oslo.", "(c)"],
)  # fmt: skip
def test_a_choice_is_found_however_it_is_written(text):
    assert multiple_choice(text, "C", CITIES) == 1.0, multiple_choice(text, "C", CITIES)


@catalogue(
    "text, reason",
    [
        ("A B C D", "ambiguous"),
        ("A, B, C or D", "ambiguous"),
        (r"\boxed{A} \boxed{B} \boxed{C}", "ambiguous"),
        ("The answer is B or C.", "ambiguous"),
        (r"The answer is B. \boxed{C}", "ambiguous"),
        ("C) Paris", "ambiguous"),
        ("The answer is B.", "wrong"),
        ("", "no_answer"),
        (r"\boxed{}", "no_answer"),
        ("<think>C", "no_answer"),
        ("The answer is \u0421.", "wrong"),  # a Cyrillic letter
        ("C\u200b", "wrong"),
    ],
)
def test_what_is_no_single_right_choice_earns_nothing(text, reason):
    verdict = multiple_choice(text, "C", CITIES)
    assert (verdict.score, verdict.reason) == (0.0, reason), verdict


def test_a_gold_choice_is_a_letter_an_index_or_a_text():
    for gold in ("C", "(C)", 2, "Oslo"):
        assert multiple_choice("C", gold, CITIES) == 1.0
    assert multiple_choice("2", "2", {"text": CITIES, "label": ["1", "2", "3", "4"]}) == 1.0
    for gold in (None, "", 7, "Lima", True):
        with pytest.raises(DataError, match="names no choice"):
            multiple_choice("C", gold, CITIES)


@catalogue(
    "text",
    ["<answer>(25 - 4) * 3</answer>", "<answer>3*(25-4) = 63</answer>", r"\boxed{(25-4)\times 3}",
     r"$\boxed{3 \cdot (25 - 4)}$", r"\boxed{(25−4)×3}"],
)  # fmt: skip
def test_an_expression_that_reaches_the_target_is_right(text):
    assert countdown(text, target=63, numbers=[25, 4, 3]) == 1.0, countdown(text, target=63, numbers=[25, 4, 3])


@catalogue(
    "text, reason",
    [
        ("<answer>63</answer>", "wrong"),
        ("<answer>25 * 3 - 4 * 3</answer>", "wrong"),  # uses the 3 twice
        ("<answer>(25 - 4) * 3 * 1</answer>", "wrong"),
        ("<answer>(25 + 4) * 3</answer>", "wrong"),
        ("<answer>(25 - 4) * 3 = 64</answer>", "ambiguous"),
        ("<answer>(25 - 4) * 3</answer><answer>25 + 4 + 3</answer>", "ambiguous"),
        ("(25 - 4) * 3", "no_answer"),
        ("<answer></answer>", "no_answer"),
        ("<answer>25 / (4 - 4) * 3</answer>", "wrong"),
        ("<answer>25 ** 4 ** 3</answer>", "wrong"),
        ("<answer>__import__('os').system('true')</answer>", "wrong"),
        ("<answer>254 - 3</answer>", "wrong"),
        ("<answer>" + "(" * 100 + "25" + ")" * 100 + "</answer>", "too_large"),
        ("<answer>" + "1+" * 300 + "1</answer>", "too_large"),
    ],
)
def test_anything_else_is_not(text, reason):
    verdict = countdown(text, target=63, numbers=[25, 4, 3])
    assert (verdict.score, verdict.reason) == (0.0, reason), verdict


@given(st.lists(st.integers(1, 99), min_size=2, max_size=5), st.data())
def test_every_expression_is_worked_out_exactly(numbers, data):
    text, value = str(numbers[0]), Fraction(numbers[0])
    for number in numbers[1:]:
        sign = data.draw(st.sampled_from("+-*/"))
        text = f"({text}) {sign} {number}"
        operations = {"+": value + number, "-": value - number, "*": value * number, "/": value / number}
        value = operations[sign]
    assert countdown(f"<answer>{text}</answer>", str(value), numbers[::-1]) == 1.0
    assert countdown(f"<answer>{text}</answer>", str(value + 1), numbers) == 0.0


@catalogue("row", [(None, [1]), (5, []), (5, None), ("x", [1]), (5, ["a"]), (True, [1]), (5, [1.5])])
def test_a_row_that_is_no_game_is_an_error_of_the_data(row):
    target, numbers = row
    with pytest.raises(DataError, match="is not a numbers game"):
        countdown("<answer>1</answer>", target, numbers)


def test_columns_reach_the_verifiers_and_bad_rows_are_named():
    game = {"target": 63, "nums": [25, 4, 3]}
    with build_rewards(["countdown"]) as rewards:
        rewards.check([prompt(0, **game)])
        scores = rewards.score([prompt(0, **game)], [[completion("<answer>(25-4)*3</answer>"), completion("no")]])
        assert scores.parts["countdown"] == [[1.0, 0.0]]
        with pytest.raises(DataError, match="row 4"):
            rewards.check([prompt(3, **game), prompt(4, target=63, nums=[])])
    with build_rewards(["multiple_choice"]) as rewards:
        scores = rewards.score([prompt(0, answer="B", choices=CITIES)], [[completion("Paris"), completion("A")]])
        assert scores.parts["multiple_choice"] == [[1.0, 0.0]]
