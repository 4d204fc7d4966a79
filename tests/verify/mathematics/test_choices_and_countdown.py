"""Multiple choice and the numbers game: which texts give one answer, and which give none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.rewards.rollouts import completion, prompt

from posttrain.errors import ConfigError, DataError
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


FRAMES = ["{}", "The answer is {}", "**{}**", r"\boxed{{{}}}", "<answer>{}</answer>", "So we check.\n\n{}",
          "The correct option is {}", "Final answer: {}"]  # fmt: skip
LABELS = ["{0}", "({0})", "{0})", "**{0}**", "Option {0}", "choice ({0})", "[{0}]"]
DENIALS = [
    "{0} is incorrect.", "{0} is not the answer.", "{0} cannot be right.", "{0}, which is incorrect.", "{0} is out",
    "{0} is wrong", "{0} isn't right", "{0} won't do", "{0} can’t hold",
    "{0} can be excluded.", "{0} has been ruled out", "{0} was my first guess",
    "{0} does not hold", "{0} is only half right", "{0} would be wrong", "{0} {1}", "{0} or {1}", "{0}, {1}",
    "{0}; maybe {1}", "not {0}", "{0} is right if {1} is wrong", "{0} because of this, or {1}", "anything but {0}",
    "{0} based on the passage or {1}", "{0} as shown above, {1}",
]  # fmt: skip
PRAISE = ["{0}", "{0}.", "{0} because the rest is wrong", "{0}, since it is so.", "{0} is correct.",
          "{0} is the right answer", "{0} {2}", "{0}: {2}", "{0} - {2}", "{0}, {2}",
          "{0} {2}, because it is.", "{2} ({3})", "{0} as shown above.", "{0}, as stated",
          "{0} based on the passage", "{0} (based on the text)."]  # fmt: skip


def sayings(forms):
    """Each form about each way to write the letter B, in each frame."""
    for frame in FRAMES:
        for label in LABELS:
            for form in forms:
                yield frame.format(form.format(label.format("B"), label.format("C"), "Paris", "B"))


@pytest.mark.parametrize("place", ["anywhere", "last_line"])
@pytest.mark.parametrize("choices", [CITIES, None])
def test_a_denied_choice_is_no_choice(place, choices):
    paid = [text for text in sayings(DENIALS) if multiple_choice(text, "B", choices, answer_from=place) != 0.0]
    assert paid == []


def test_a_choice_with_its_text_or_a_reason_is_paid():
    unpaid = [text for text in sayings(PRAISE) if multiple_choice(text, "B", CITIES) != 1.0]
    assert unpaid == []
    assert [text for text in sayings(PRAISE) if multiple_choice(text, "A", CITIES) != 0.0] == []


@catalogue(
    "text",
    [r"\boxed{B} is incorrect", "The answer is B. That is wrong.", "The answer is B. Rome",
     "The correct option is B. Rome", r"\boxed{B \text{ is wrong}}", "B fails", "B) fails", "B) Ruled out",
     "B as shown above is wrong", "(B) as stated fails", "B based on the passage fails", "B as shown to be false",
     "B as well as A", "B, based on the passage A",
     "(B) Pariss", "Rome (B)", "Answer: Paris (C)", "(B) Paris, or (C)", "Paris is wrong. It is not B",
     r"\boxed{\text{(B)}\ Rome}", "**B** is out"],
)  # fmt: skip
def test_words_around_a_choice_count(text):
    assert multiple_choice(text, "B", CITIES) == 0.0, multiple_choice(text, "B", CITIES)


@catalogue(
    "text",
    ["Choice B", "Answer: 5 (B)", "(B) the mitochondria", "B. Paris", r"\boxed{\textbf{(B)}\ 42}", "B: $x^2$",
     "B - none of them", r"The answer is \textbf{(B) } 3:5.", "(B) It grows", "Answer: B. Because it is so"],
)  # fmt: skip
def test_without_the_choices_any_text_may_follow_a_marked_letter(text):
    assert multiple_choice(text, "B") == 1.0, multiple_choice(text, "B")


@catalogue(
    "place, text, score",
    [
        ("box", r"The answer is \boxed{B}", 1),
        ("box", "The answer is B", 0),
        ("box", r"\boxed{B is out}", 0),
        ("box", r"\boxed{A} \boxed{B}", 0),
        ("tag", "<answer>B</answer> for sure", 1),
        ("tag", r"<answer>\boxed{B}</answer>", 1),
        ("tag", r"\boxed{B}", 0),
        ("last_line", "The answer is C.\nThe answer is (B).", 1),
        ("last_line", "The answer is B.\nWhat a question", 0),
        ("last_line", "B\n\n**\n", 1),
        ("last_line", "<think>x</think>\n<answer>\nB\n</answer>", 1),
        ("last_line", "Not C.\n<answer>\n(B)\n</answer>\n", 1),
        ("last_line", "<solution>\nB\n</solution>", 1),
        ("last_line", "<answer>\nA\nB\n</answer>", 0),
        ("last_line", "<answer>\nA\n</answer> B", 0),
        ("last_line", "<answer>\nB\n</answer>\nC", 0),
        ("last_line", "<answer>\nB\n</answer> <answer>\nC\n</answer>", 0),
        ("last_line", "The answer is C. The answer is B.", 0),
        ("anywhere", "The answer is C.\nThe answer is (B).", 0),
    ],
)
def test_a_choice_is_read_from_one_place(place, text, score):
    assert multiple_choice(text, "B", CITIES, answer_from=place) == score
    assert multiple_choice(text, "B", answer_from=place) == score


def test_a_run_reads_choices_from_the_last_line():
    with build_rewards(["multiple_choice"], training=True) as rewards:
        assert rewards.components[0].settings["answer_from"] == "last_line"
    with pytest.raises(ConfigError, match="answer_from = 'top'"):
        multiple_choice("B", "B", answer_from="top")  # pyright: ignore[reportArgumentType]


def test_a_gold_choice_is_a_letter_an_index_or_a_text():
    for gold in ("C", "(C)", 2, "Oslo", "(C) Oslo", "C. It is in the north", "Oslo (C)"):
        assert multiple_choice("C", gold, CITIES) == 1.0
    assert multiple_choice("2", "2", {"text": CITIES, "label": ["1", "2", "3", "4"]}) == 1.0
    for gold in (None, "", 7, "Lima", True, "C) Rome", "A, C", "A C"):
        with pytest.raises(DataError, match="names no choice"):
            multiple_choice("C", gold, CITIES)


BLOOD = ["B", "A", "O", "AB"]
ARC = {"text": ["4", "3", "2", "1"], "label": ["1", "2", "3", "4"]}


@pytest.mark.parametrize(
    ("choices", "gold", "right", "wrong"),
    [
        (
            BLOOD,
            "A",
            ["The answer is (A).", "A) B", "(A) B", r"\boxed{A}", "**A**", "a", "(a)"],
            ["(B)", "B", "b", "(b)", "B) A", "C"],
        ),
        (BLOOD, 0, ["The answer is (A).", "A) B", "A"], ["(B)", "D"]),
        (BLOOD, "O", ["O", "C", "C) O"], ["A", "B"]),
        (ARC, "1", ["The answer is (1).", "1) 4", "1"], ["(4)", "4) 1", "4"]),
        ({"text": ["yes", "no"], "label": ["a", "b"]}, "a", ["(A)", "A", "yes"], ["B", "no"]),
        ({"text": ["b", "a"], "label": ["a", "b"]}, "a", ["(A)", "a", "A"], ["(B)", "b", "B"]),
    ],
)
def test_a_label_that_is_also_the_text_of_another_choice_is_a_label(choices, gold, right, wrong):
    assert [text for text in right if multiple_choice(text, gold, choices) != 1.0] == []
    assert [text for text in wrong if multiple_choice(text, gold, choices) != 0.0] == []


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
