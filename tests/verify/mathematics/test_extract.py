"""Where a completion has its one final answer, and when it has none."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.verify.mathematics.choices import multiple_choice
from posttrain.verify.mathematics.extract import MAX_TEXT, NeedsAlgebra, extract
from posttrain.verify.mathematics.numeric import number_of, read_number


@catalogue(
    "completion, answer",
    [
        (r"First \boxed{\frac{1}{2}}, that is \boxed{0.5}.", "0.5"),
        (r"$\boxed{7}$, $\boxed{7}$", "7"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"about \boxed{28}\% of them", r"28\%"),
        (r"so $x = -\boxed{4}$", "-4"),
        (r"so $x-\boxed{4}$", "4"),
        (r"\boxed 4", "4"),
        (r"\\boxed{4}", "4"),
        (r"\fbox{4}", "4"),
        ("She sells 9 eggs.\n#### 18", "18"),
        ("The final answer is $28 \\%$. I hope it is correct.", "28 \\%"),
        ("**Answer:** 42\nAnd 5 more words.", "42"),
        ("**Final Answer**\n\n42", "42"),
        ("The answer is 3.5.", "3.5"),
        ("The answer is\n\n12", "12"),
        ("The answer is $7$, because 5 + 2 = 7.", "7"),
        ("with 3 ducks more that makes 5", "5"),
        ("Thus $x <= 2$ is it.", "x <= 2"),
        ("$$\nx + 1\n$$", "x + 1"),
        ("So 9 * 2 = $18 every day.", "$18"),
        ("the number is not 10 which is 1,000.99 m", "1,000.99"),
        (r"<think> \boxed{7} </think> so it is 8", "8"),
        (r"<answer>8</answer>", "8"),
    ],
)
def test_the_final_answer_is_found(completion, answer):
    assert extract(completion).answer == answer


@catalogue(
    "completion",
    [
        "",
        "no idea",
        r"Put it within \boxed{}.",
        r"\boxed{7",
        r"7 \boxed{",
        r"<think> it is \boxed{7}",
        "<answer></answer> 7",
    ],
)
def test_some_completions_have_no_answer(completion):
    found = extract(completion)
    assert (found.answer, found.reason) == (None, "no_answer")


@catalogue(
    "completion, candidates",
    [
        (r"\boxed{6}. No: \boxed{7}", 2),
        (r"\boxed{6} \boxed{7} \boxed{8} \boxed{7}", 3),
        (r"\boxed{7} or 8", 2),
        (r"The answer is 6. \boxed{7}", 2),
        ("#### 71 #### 72", 2),
        ("The answer is 6. The answer is 7.", 2),
        ("<answer>6</answer> <answer>7</answer>", 2),
        ("0 1 2 3 4 5 6 7", 8),
        ("there are 3 ducks and 5 geese", 2),
        ("it costs $5 and $6.", 2),
        ("It is 6. It is 7.", 2),
    ],
)
def test_several_answers_are_none(completion, candidates):
    found = extract(completion)
    assert (found.answer, found.reason, found.candidates) == (None, "ambiguous", candidates)


@catalogue(
    "around",
    [
        "ANSWER is wrong",
        "It is not ANSWER",
        "<del>ANSWER</del>",
        "~~ANSWER~~",
        "half of ANSWER",
        "ANSWER or 8",
        "8 or ANSWER",
        "ANSWER. No, 8.",
        "ANSWER (or 8)",
        "The answer is 8. ANSWER",
        "The answer is ANSWER.",
        "ANSWER, because 5 + 2 = 7",
        "So there are ANSWER eggs.",
        "**ANSWER**",
    ],
)
def test_the_words_around_a_tag_count_as_those_around_a_box(around):
    box, tag = extract(around.replace("ANSWER", r"\boxed{7}")), extract(around.replace("ANSWER", "<answer>7</answer>"))
    assert (tag.answer, tag.reason, tag.candidates) == (box.answer, box.reason, box.candidates)
    if "8" in around or any(word in around for word in ("wrong", "not", "del", "~~", "half")):
        assert tag.answer is None
    else:
        assert tag.answer == "7"


def test_a_choice_in_a_tag_that_the_text_denies_is_not_paid():
    row = {"answer": "B", "choices": ["a dog", "a cat", "a cow"]}
    assert multiple_choice("<answer>B</answer>", **row).score == 1.0
    assert multiple_choice("It is not <answer>B</answer>", **row).score == 0.0
    assert multiple_choice("<answer>B</answer> is wrong", **row).score == 0.0


def test_answers_side_by_side_can_still_be_the_list_that_was_asked_for():
    assert extract(r"$\boxed{6}$ and $\boxed{7}$").listed == "6, 7"
    assert extract(r"$y_1 = \boxed{6}$ and $y_2 = \boxed{7}$").listed == "6, 7"
    assert extract("the solutions $1$ and $2$").listed == "1, 2"
    assert extract(r"\boxed{6}. Wait, no: \boxed{7}").listed is None


def test_whether_two_formulas_are_one_answer_can_take_algebra():
    with pytest.raises(NeedsAlgebra):
        extract(r"\boxed{\sin^2 x} is \boxed{1-\cos^2 x}")


def test_a_text_beyond_any_completion_is_not_read():
    assert extract("7" * (MAX_TEXT + 1)).reason == "too_large"


@given(st.integers(-(10**30), 10**30), st.integers(0, 4))
def test_every_decimal_comes_back_as_it_was_written(digits, places):
    value = Fraction(digits, 10**places)
    text = f"{'-' if digits < 0 else ''}{abs(digits) // 10**places:,}" + (
        f".{abs(digits) % 10**places:0{places}d}" if places else ""
    )
    for number in (read_number(text), number_of(f"So the answer is {text}.")):
        assert (number.value, number.percent) == (value, False)


@given(st.text(alphabet=r"\boxed{}()[]$#=-,. %/0123456789 answris:", max_size=80) | st.text(max_size=80))
def test_no_text_breaks_the_extraction(text):
    try:
        found = extract(text)
    except NeedsAlgebra:
        return
    assert (found.answer is None) == (found.reason is not None)
    number_of(text)
    read_number(text)


@catalogue(
    "piece",
    ["$ ", "7", "{", "\\boxed{", "\\frac{1", "1/", "1,", "1 ", "answer is ", "\\[", "-", "x ", "a+b=", "$1$ ", "\\",
     "#### ", "<answer>", "</think>", "<think>", "\\boxed{7}", "final answer\n", "1. ", "is 7 ",
     "<|im_start|>assistant "],
)  # fmt: skip
def test_hostile_text_costs_milliseconds(piece):
    """Twenty times the text takes at most about twenty times as long; with quadratic cost it would be 400 times."""

    def seconds(repeats):
        start = time.process_time()
        number_of(piece * repeats + "=1")
        read_number(piece * repeats + "=1")
        return time.process_time() - start

    most = max(100 * min(seconds(1000) for _ in range(5)), 0.3)
    assert seconds(20_000) < most or seconds(20_000) < most  # one may have to collect the garbage of other tests
