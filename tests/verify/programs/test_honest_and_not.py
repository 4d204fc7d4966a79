"""Honest programs that earn the reward and dishonest ones that do not, found with the rows of the usual datasets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.rewards.code_runner import CodeRunner
from posttrain.verify.programs import code
from posttrain.verify.programs.attacks import fenced
from posttrain.verify.programs.suite import read_suite

NAN = "def f(x):\n    return [0.0, float('nan')]\n"
LARGEST = "def check(candidate):\n    assert max(abs(a - b) for a, b in zip(candidate(1), [0.0, 1.0])) < 1e-6\n"


@pytest.mark.parametrize(
    ("source", "row"),
    [
        (NAN, {"test": LARGEST, "entry_point": "f"}),
        ("def f(x): return float('nan')", {"test_list": ["assert not abs(f(1) - 5) > 1e-6"]}),
        ("def f(x): return complex('nan')", {"test_list": ["assert not abs(f(1) - 5) > 1e-6"]}),
        ("def f(x): return complex(0, float('nan'))", {"test_list": ["assert not abs(f(1) - 5) > 1e-6"]}),
        ("def f(x): return 5.0", {"test_list": ["assert f(1) != 5"], "float_ok": False}),
        ("def f(x): return True", {"test_list": ["assert f(1) != 1"], "float_ok": True}),
        ("print(7)", {"tests": [{"input": "1", "output": "inf"}], "tolerance": 1e-6}),
        ("print(1000000001)", {"tests": [{"input": "1", "output": "1000000000"}], "tolerance": 1e-6}),
    ],
    ids=range(8),
)
def test_what_a_loose_comparison_would_pay_is_not_paid(source: str, row: dict[str, Any]):
    verdict = code(fenced(source), **row)
    assert (verdict, verdict.reason) == (0.0, "wrong")


def test_a_test_that_speaks_of_nan_may_be_given_one():
    tests = ["assert f(1) != f(1)  # nan", "assert [x for x in f(2)][0] != 0"]
    source = "def f(x): return float('nan') if x == 1 else [1, 2]"
    assert code(fenced(source), test_list=tests) == 1.0


ADD = "class Solution:\n    def add(self, a: List[int], b: Optional[int]) -> int:\n        return sum(a) + b\n"


@pytest.mark.parametrize(
    ("source", "row"),
    [
        (ADD, {"input_output": json.dumps({"fn_name": "add", "inputs": [[[1, 2], 3]], "outputs": [6]})}),
        (ADD, {"test_list": ["assert Solution().add([1, 2], 3) == 6"]}),
        (ADD, {"test": "def check(c):\n    assert c(a=[1], b=1) == 2\n", "entry_point": "Solution().add"}),
        (
            "print(int(input()) + 1)",
            {"answer": json.dumps({"inputs": ["1"], "outputs": ["2"]})},
        ),
        ("print(int(input()) + 1)\nexit()", {"tests": [{"input": "1", "output": "2"}]}),
        ("print('1 ' * 200_000)", {"tests": [{"input": "1", "output": "1 " * 200_000}]}),
        ("print(1.9999999)", {"tests": [{"input": "1", "output": "2"}], "tolerance": 1e-6}),
        (
            "def f(x):\n    return x + 1",
            {"prompt": "def f(x):\n", "entry_point": "f",
             "test": "def check(candidate):\n    for n in range(3):\n        assert candidate(n) == n + 1\n"},
        ),
    ],
    ids=range(8),
)  # fmt: skip
def test_honest_programs_of_the_usual_forms_are_paid(source: str, row: dict[str, Any]):
    verdict = code(fenced(source), **row)
    assert verdict == 1.0, verdict.detail


def test_output_beyond_what_is_asked_for_and_the_limit_is_too_much():
    tests = [{"input": "1", "output": "1 " * 200_000}]
    assert "wrote too much" in code(fenced("print('1 ' * 500_000)"), tests=tests).detail


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "def f(): pass"}, "a row without tests"),
        ({"answer": '{"inputs": ["1"], "outputs": []}'}, "do not pair up"),
        ({"tests": [{"input": "1", "output": "\n"}]}, "all expect nothing"),
        ({"tests": [{"input": [[1]], "output": None}], "entry_point": "f"}, "all expect nothing"),
        ({"tests": [{"input": [[0] * 400_000], "output": 0}], "entry_point": "f"}, "a value of too many parts"),
        ({"test_list": ["assert (f(1) == 2, 'no')"]}, "without an assert"),
        ({"test_list": ["assert f(1) == 2"], "test_imports": ["import numpy as np"]}, "tests that import numpy"),
    ],
)
def test_tests_that_no_program_could_pass_or_every_program_would_are_refused(row: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        read_suite(row)


FORGED = """
import os, struct, sys
def f(x):
    frame = sys._getframe()
    while "task" not in frame.f_locals:
        frame = frame.f_back
    body = b'{"nonce":"%s","value":[%s]}' % (frame.f_locals["task"]["nonce"].encode(), b",".join([b"0"] * 400_000))
    body = struct.pack(">I", len(body)) + body
    while body:
        body = body[os.write(3, body):]
    os._exit(0)
"""


@pytest.mark.parametrize("test", ["assert abs(f(1) - 2) < 1e-6", "assert f(1) == 2"])
def test_a_program_cannot_go_without_a_score_by_sending_more_than_can_be_passed_on(test: str):
    runner = CodeRunner({})
    [outcome] = runner.run([{"completion": fenced(FORGED), "test_list": [test]}], {"wall": 60.0, "cpu": 60.0}, 120.0)
    runner.close()
    assert (outcome.kind, outcome.value) == ("value", 0.0)
    assert "too many parts" in outcome.verdict["detail"]
