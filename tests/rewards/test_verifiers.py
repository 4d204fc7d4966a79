"""The built-in verifiers, alone on plain strings."""

import gzip
import json
from pathlib import Path

import pytest
from tests.catalogue import catalogue, few

from posttrain.errors import ConfigError, DataError
from posttrain.rewards import exact_match, math, numeric, regex
from posttrain.rewards.verifiers import BUILTINS
from posttrain.verify.mathematics import guard
from posttrain.verify.mathematics.golds import math_gold
from posttrain.verify.mathematics.presets import in_time

MATH = Path(__file__).parents[3] / "shared" / "data" / "math"
needs_data = pytest.mark.skipif(not MATH.is_dir(), reason="the shared data folder is not there")


def rows(name: str) -> list[dict]:
    content = (MATH / name).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(content) if name.endswith(".gz") else content).splitlines()]


def test_every_builtin_is_found_where_the_package_says():
    """Six share their name with a module or with a Python function, or belong to the run itself."""
    import posttrain.rewards

    elsewhere = {"agent", "code", "environment", "format", "language", "repetition"}
    assert {name for name in BUILTINS if name not in posttrain.rewards.__all__} == elsewhere
    for name, builtin in BUILTINS.items():
        if name not in elsewhere:
            assert getattr(posttrain.rewards, name) is builtin.function
    assert posttrain.rewards.format_tags is BUILTINS["format"].function
    assert all(name in (posttrain.rewards.__doc__ or "") for name in elsewhere)


def test_exact_match_ignores_only_surrounding_space():
    assert exact_match(" Paris\n", "Paris") == 1.0
    assert exact_match("paris", "Paris") == 0.0
    assert exact_match("paris", "Paris", ignore_case=True) == 1.0
    assert exact_match("145", 145.0) == 1.0


def test_exact_match_extracts_the_last_match():
    assert exact_match("<a>x</a> no, <a>y</a>", "y", extract="<a>(.*?)</a>") == 1.0
    assert exact_match("<a>x</a> no, <a>y</a>", "x", extract="<a>(.*?)</a>") == 0.0
    assert exact_match("choose B", "B", extract="[A-D]") == 1.0
    assert exact_match("none", "B", extract="[A-D]") == 0.0


@catalogue(
    "completion, answer, expected",
    [
        ("It is 1,234.", "1234", 1.0),
        ("$1,234.00", 1234, 1.0),
        ("so 2468/2", "1234", 1.0),
        ("so 1235", "1234", 0.0),
        ("#### 18", "She sells 9.\n#### 18", 1.0),
        ("0.1", 0.1, 1.0),
        ("0.1000000001", "0.1", 0.0),
        ("1/3", "0.333", 0.0),
        ("20%", "20", 0.0),
        ("20%", "0.2", 1.0),
        ("0.2", "20%", 1.0),
        ("20", "20%", 0.0),
        ("2000%", "20%", 0.0),
        ("the answer is 7, or maybe 8", "7", 0.0),
        (r"$\boxed{6}$ or $\boxed{7}$", "7", 0.0),
        ("nothing", "7", 0.0),
    ],
)
def test_numeric_compares_exact_fractions(completion, answer, expected):
    assert numeric(completion, answer) == expected


def test_numeric_takes_a_relative_and_an_absolute_tolerance():
    assert numeric("3.14", "3.14159", relative_tolerance=1e-3) == 1.0
    assert numeric("3.13", "3.14159", relative_tolerance=1e-3) == 0.0
    assert numeric("10", "11", absolute_tolerance=1) == 1.0
    assert numeric("1001", "1000", relative_tolerance=0.01) == 0.0  # an integer is exact
    assert numeric("1001", "1000.0", relative_tolerance=0.01) == 1.0
    with pytest.raises(ConfigError, match="below 0"):
        numeric("1", "1", relative_tolerance=-1.0)


def test_regex_wants_the_whole_completion_unless_told_otherwise():
    assert regex("<think>a\nb</think>4", pattern="<think>.+</think>[0-9]+") == 1.0
    assert regex("x<think>a</think>4", pattern="<think>.+</think>[0-9]+") == 0.0
    assert regex("x<think>a</think>4", pattern="<think>", whole=False) == 1.0
    assert regex("ABC", pattern="abc", ignore_case=True) == 1.0
    with pytest.raises(ConfigError, match=r"pattern = '\(' is not a regular expression"):
        regex("a", pattern="(")


@catalogue(
    "gold, completion, expected",
    [
        ("42", "so 42", 1.0),
        ("42", r"\boxed{42.0}", 1.0),
        (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
        (r"2\sqrt{3}", r"hence $\sqrt{12}$.", 1.0),
        ("x^2+2x+1", r"\boxed{(x+1)^2}", 1.0),
        (r"\{1,2\}", r"\boxed{\{1,2,3\}}", 0.0),
        (r"\frac{1}{3}", r"\boxed{0.333}", 0.0),
        ("7", r"\boxed{8=7}", 0.0),
        ("7", r"\boxed{6}, \boxed{7}", 0.0),
        ("0.0000004", r"\boxed{0.0000001}", 0.0),
        ("7", "", 0.0),
        ("$10$ cm", r"\boxed{10}", 1.0),
        (r"\text{even}", "The answer is even.", 1.0),
    ],
)
def test_math_compares_what_is_meant(gold, completion, expected):
    assert math(completion, gold) == expected


def test_numeric_reads_a_percent_sign_exactly_unless_told_otherwise():
    for completion, answer in (("20%", "20"), ("20", "20%"), ("20%", "0.2"), ("0.2", "20%")):
        assert numeric(completion, answer, percent="either") == 1.0
    assert numeric("2000%", "20%", percent="either") == 0.0
    with pytest.raises(ConfigError, match="percent = 'loose'"):
        numeric("1", "1", percent="loose")  # type: ignore[arg-type]


@pytest.fixture
def unhurried(monkeypatch):
    """Allow more than the 5 ms of a quick verdict, for slow machines and the garbage of other tests."""
    monkeypatch.setattr(guard, "QUICK_SECONDS", 10.0)


@pytest.mark.usefixtures("unhurried")
def test_only_algebra_goes_to_a_worker():
    for completion, gold in [("#### 1,000", "1000.0"), (r"\boxed{x^2}", "1000"), (r"\boxed{(x+1)^2}", "x^2+2x+1")]:
        assert in_time(math)(completion, gold) is not None
    assert in_time(math)(r"\boxed{\sec^2 y}", r"\tan^2 y + 1") is None


def test_no_model_text_is_executed(tmp_path):
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path('{trap}').touch()"
    for completion in [rf"\boxed{{7+0*{code}}}", f"the answer is {code}", rf"$[{code}, 2]$"]:
        for gold in ["7", r"\begin{pmatrix}1\\2\end{pmatrix}"]:
            math(completion, gold)
    assert not trap.exists()


@pytest.mark.parametrize("gold", [None, float("nan"), "", "  ", "#### ", True, ["7"]])
def test_a_gold_answer_that_is_none_raises_whatever_the_completion(gold):
    for verifier in (exact_match, numeric, math):
        with pytest.raises(DataError, match="the gold answer is"):
            verifier("", gold)


def test_a_gold_answer_of_the_wrong_kind_says_so():
    with pytest.raises(DataError, match=r"the gold answer 'x\^2' is not one number"):
        numeric("1", "x^2")
    with pytest.raises(DataError, match="cannot be read"):
        math(r"\boxed{x}", r"\frac{1}{")


@needs_data
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("file", "column"), [("gsm8k_test.jsonl", "answer"), ("svamp_test.jsonl", "Answer")])
@pytest.mark.parametrize("every", few([1, 7], 7))
def test_every_gold_of_gsm8k_and_svamp_is_a_number_and_right_for_itself(file, column, every):
    for row in rows(file)[::every]:
        text = f"Therefore the answer is ${math_gold(row[column])}."
        assert numeric(text, row[column]) == in_time(math)(text, row[column]) == 1.0
        assert numeric(f"\\boxed{{{math_gold(row[column])}1}}", row[column]) == 0.0
