"""Where the final answer stands and which number it is."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.rewards.answers import final_answer, last_number, single_number


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"First \boxed{3}. No: \boxed{\frac{1}{2}}, surely.", r"\frac{1}{2}"),
        (r"\boxed{4} and a last 5, the answer is 6", "4"),
        (r"$\boxed{6}$ or $\boxed{7}$ or $\boxed{8}$", "6, 7, 8"),
        (r"$\boxed{7}$, $\boxed{7}$", "7"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"about \boxed{28}\% of them", r"28\%"),
        (r"It could be \boxed{6}. Alternatively \boxed{8}.", "8"),
        ("She sells 9 eggs.\n#### 18", "18"),
        ("The final answer is $28 \\%$. I hope it is correct.", "28 \\%"),
        ("**Answer:** 42\nAnd 5 more words.", "42"),
        ("The answer is 3.5.", "3.5"),
        ("The answer is\n\n12", "12"),
        ("there are 3 ducks and 5 geese", "5"),
        ("Thus $x <= 2$ is it.", "x <= 2"),
        ("solutions $1$ and $2$", "1, 2"),
        ("it costs $5 and $6.", "$6"),
        ("$$\nx + 1\n$$", "x + 1"),
        (r"<think> \boxed{7} </think> so it is 8", "8"),
    ],
)
def test_the_final_answer_is_found(completion, answer):
    assert final_answer(completion) == answer


@pytest.mark.parametrize(
    "completion",
    ["", "no idea", r"Put it within \boxed{}.", r"\boxed{7", r"7 \boxed{", r"<think> it is \boxed{7}", r"7, \boxed 7"],
)
def test_some_completions_have_no_answer(completion):
    assert final_answer(completion) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("007", 7),
        ("-3", -3),
        ("−4", -4),
        ("- 5", -5),
        (".5", Fraction(1, 2)),
        ("72.", 72),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1{,}000", 1000),
        (r"20,\!000", 20000),
        ("1.5e3", 1500),
        ("$18", 18),
        (r"\$18", 18),
        ("-$5", -5),
        ("€ 7.50", Fraction(15, 2)),
        ("3/4", Fraction(3, 4)),
        ("3 1/2", Fraction(7, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac12", Fraction(-1, 2)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        ("18 dollars", 18),
        (r"10\text{ cm}^2", 10),
        ("60 km/h", 60),
        ("x = 5", 5),
        ("16 - 3 - 4 = 9", 9),
        ("12345678901234567890", 12345678901234567890),
    ],
)
def test_a_number_is_read_exactly(text, value):
    number = single_number(text)
    assert number is not None
    assert number == (value, False)


@pytest.mark.parametrize("text", ["7%", r"7\%", "7 percent"])
def test_a_percent_sign_is_kept_beside_the_value(text):
    assert single_number(text) == (7, True)


@pytest.mark.parametrize(
    "text", ["", "x", "7 or 8", "1, 2", "8 = 7", "x = 8 = 7", "3x", "3^2", "2^{10}", "5!", r"\sqrt{2}", "5 + 4", "6-7"]
)
def test_what_is_not_one_number_is_none(text):
    assert single_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "1,22",
        "1 000",
        "1/2/3",
        "1/0",
        "x <= 2",
        "2x + z = 1",
        "a_3 = 2, b = 19",
        "9**9",
        "٧",
        "AB2",
        "1.2.3",
        "7" * 401,
    ],
)
def test_a_doubtful_number_is_none_too(text):
    assert single_number(text) is None


@given(st.integers(-(10**30), 10**30), st.integers(0, 4))
def test_every_decimal_comes_back_as_it_was_written(digits, places):
    value = Fraction(digits, 10**places)
    text = f"{'-' if digits < 0 else ''}{abs(digits) // 10**places:,}" + (
        f".{abs(digits) % 10**places:0{places}d}" if places else ""
    )
    assert single_number(text) == (value, False)
    assert last_number(f"So the answer is {text}.") == (value, False)


@given(st.text(alphabet=r"\boxed{}()[]$#=-,. %/0123456789 answris:", max_size=80) | st.text(max_size=80))
def test_no_text_breaks_the_extraction(text):
    answer = final_answer(text)
    assert answer is None or answer.strip()
    last_number(text)
    single_number(text)


@pytest.mark.parametrize(
    "piece", ["$ ", "7", "{", "\\boxed{", "\\frac{1", "1/", "1,", "1 ", "answer is ", "\\[", "-", "x ", "a+b=", "$1$ "]
)
def test_hostile_text_costs_milliseconds(piece):
    """Twenty times the text costs about twenty times the time; with quadratic cost it would be 400 times."""

    def seconds(repeats):
        start = time.process_time()
        last_number(piece * repeats + "=1")
        single_number(piece * repeats + "=1")
        return time.process_time() - start

    short = min(seconds(1000) for _ in range(5))
    assert seconds(20_000) < max(100 * short, 0.3)
