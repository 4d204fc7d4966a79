"""The verifier `code` on real programs in a real sandbox: right and wrong programs, and the reasons."""

from __future__ import annotations

import json
import pickle
import threading
import time
from typing import Any

import pytest
from tests.catalogue import catalogue
from tests.rewards.rollouts import completion, prompt

from posttrain.errors import ConfigError, DataError, SandboxUnavailable
from posttrain.rewards import Reward, build_rewards
from posttrain.rewards.calls import Abandoned
from posttrain.rewards.code_runner import CodeRunner
from posttrain.verify.programs import code
from posttrain.verify.programs.attacks import fenced

DOUBLE = "def f(n):\n    return 2 * n\n"
CALLS = {"tests": [{"input": [n], "output": 2 * n} for n in (1, 2, 3)], "entry_point": "f"}


PATIENT = {"wall": 60.0, "cpu": 60.0}
"""Deadline in seconds for programs that end on their own, generous enough for a busy machine."""
ENDLESS = {"wall": 60.0, "cpu": 1.0}
"""Deadline in seconds for a program that does not end. Pauses of the machine do not count as processor time."""


def judged(program: str, **row: Any):
    return code(fenced(program), **PATIENT | row)


@pytest.mark.parametrize(
    ("program", "score", "reason", "detail"),
    [
        (DOUBLE, 1.0, "correct", "3 of 3 tests"),
        ("def f(n):\n    return n + 1\n", 0.0, "wrong", "test 2 of 3: f(2) gave 3, not 4"),
        ("def f(n):\n    return 2.0 * n\n", 0.0, "wrong", "f(1) gave 2.0, not 2"),
        ("def f(n):\n    return 1 / 0\n", 0.0, "error", "f(1) raised ZeroDivisionError: division by zero"),
        ("def f(n):\n", 0.0, "error", "raised IndentationError"),
        ("def g(n):\n    return 2 * n\n", 0.0, "error", "raised NameError: name 'f' is not defined"),
        ("def f(n):\n    while True: pass\n", 0.0, "timeout", "test 1 of 3: the program was stopped after"),
        ("def f(n):\n    return object()\n", 0.0, "error", "a value of type object, which is not plain data"),
        ("import os\nos.abort()\n", 0.0, "error", "died of signal 6"),
        ("class Solution:\n    def f(self, n):\n        return 2 * n\n", 1.0, "correct", ""),
    ],
)
def test_call_tests(program, score, reason, detail):
    verdict = judged(program, **CALLS, **ENDLESS)
    assert (verdict.score, verdict.reason) == (score, reason)
    assert detail in verdict.detail
    assert verdict.extracted == fenced(program).removeprefix("```python\n").removesuffix("```")
    assert verdict.seconds > 0


@pytest.mark.parametrize(
    ("returned", "expected", "score"),
    [
        ("{1: 5}", {"1": 5}, 1.0),
        ("{'1': 5}", {"1": 5}, 1.0),
        ("{1: 5}", [{"1": 5}], 1.0),
        ("[({1: (2,)}, 'a')]", [[{"1": [2]}, "a"]], 1.0),
        ("{1: 5}", {1: 5}, 1.0),
        ("{1: 6}", {"1": 5}, 0.0),
        ("{1: 4, '1': 5}", {"1": 5}, 0.0),
        ("{1.0: 5}", {"1": 5}, 0.0),
        ("{True: 5}", {"1": 5}, 0.0),
        ("{10 ** 5000: 5}", {"1": 5}, 0.0),
        ("1", "1", 0.0),
    ],
)
def test_a_result_of_a_test_in_json_counts_if_json_writes_it_alike(returned, expected, score):
    tests = {"inputs": [[3]], "outputs": [expected], "fn_name": "f"}
    assert judged(f"def f(n):\n    return {returned}\n", input_output=tests) == score


def test_functions_are_called_with_the_json_arguments_of_verl():
    tests = json.dumps({"inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"], "fn_name": "f"})
    assert judged("def f(a, b):\n    return a + b\n", answer=tests) == 1.0
    assert judged("def f(a, b):\n    return str(a + b)\n", answer=tests) == 0.0


@pytest.mark.parametrize("text", ["I cannot.", "```text\n1\n```"])
def test_no_program_is_no_answer(text):
    assert code(text, **CALLS).reason == "no_answer"
    assert code(text, **CALLS, truncated=True).reason == "truncated"


def test_partial_pays_the_share_of_tests_that_pass():
    program = "def f(n):\n    return 2 * n if n < 3 else 0\n"
    assert judged(program, **CALLS) == 0.0
    verdict = judged(program, **CALLS, partial=True)
    assert verdict == pytest.approx(2 / 3)
    assert verdict.reason == "partial"
    assert "test 3 of 3: f(3) gave 0, not 6" in verdict.detail


def test_a_program_that_sleeps_ends_at_the_wall():
    """A sleeping program uses no processor time."""
    verdict = judged("import time\ndef f(n):\n    time.sleep(600)\n", **CALLS, wall=1.0)
    assert (verdict.score, verdict.reason) == (0.0, "timeout")


def test_with_partial_a_late_test_is_the_last_one():
    program = "def f(n):\n    while n == 2: pass\n    return 2 * n\n"
    verdict = judged(program, **CALLS, partial=True, **ENDLESS)
    assert verdict == pytest.approx(1 / 3)


@pytest.mark.parametrize(("float_ok", "values", "assertions"), [(None, 0.0, 1.0), (True, 1.0, 1.0), (False, 0.0, 0.0)])
def test_numbers_of_another_type_are_wrong_as_values_and_right_in_assertions_unless_the_user_says(
    float_ok, values, assertions
):
    program = "def f(n):\n    return 2.0 * n\n"
    assert judged(program, **CALLS, float_ok=float_ok) == values
    assert judged(program, test_list=["assert f(1) == 2"], float_ok=float_ok) == assertions


@pytest.mark.parametrize(
    ("program", "score", "reason"),
    [
        ("print(int(input()) * 2)", 1.0, "correct"),
        ("import sys\nprint(int(sys.stdin.read()) * 2)\nsys.exit(0)", 1.0, "correct"),
        ("if __name__ == '__main__':\n    print(2 * int(input()), end='  \\n\\n')", 1.0, "correct"),
        ("print(2)", 0.0, "wrong"),
        ("print(int(input()) * 2)\nraise SystemExit(3)", 0.0, "error"),
        ("input(); input()", 0.0, "error"),
    ],
)
def test_programs_that_read_and_write(program, score, reason):
    verdict = judged(program, tests=[{"input": "1\n", "output": "2\n"}, {"input": "4\n", "output": "8\n"}])
    assert (verdict.score, verdict.reason) == (score, reason)


def test_numbers_in_output_may_have_a_tolerance():
    row = {"tests": [{"input": "", "output": "0.333333"}]}
    assert judged("print(1 / 3)", **row) == 0.0
    assert judged("print(1 / 3)", **row, tolerance=1e-5) == 1.0
    with pytest.raises(ConfigError, match="tolerance = -1"):
        judged("print(1 / 3)", **row, tolerance=-1)


@catalogue(
    "program, test, score",
    [
        ("def f(n):\n    return [2, 1]\n", "assert sorted(f(0)) == [1, 2]", 1.0),
        ("def f(n):\n    return iter([1, 2])\n", "assert list(f(0)) == [1, 2]", 1.0),
        ("def f(n):\n    return {1, 2}\n", "assert set(f(0)) == {2, 1}", 1.0),
        ("def f(n):\n    return 1.4142\n", "assert math.isclose(f(2), 2 ** 0.5, rel_tol=0.001)", 1.0),
        ("def f(n):\n    return n ** 2\n", "for n in range(5):\n    assert f(n) == n * n", 1.0),
        ("def f(n):\n    return n * 2\n", "for n in range(5):\n    assert f(n) == n * n", 0.0),
        ("import sys\ndef f(n):\n    return sys.getsizeof(n)\n", "assert f((1, 2)) == sys.getsizeof((1, 2))", 1.0),
        ("def f(n):\n    return [1, (2, None)]\n", "x = f(1)\nassert x[1] == (2, None) and type(x) is list", 1.0),
        (
            "def f(n):\n    raise ValueError('no')\n",
            "try:\n    f(1)\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False",
            1.0,
        ),
        ("def f(n):\n    raise KeyError\n", "try:\n    f(1)\nexcept ValueError:\n    pass\nassert True", 0.0),
        (
            "class Mine(Exception): pass\ndef f(n):\n    raise Mine\n",
            "try:\n    f(1)\nexcept Exception:\n    assert 1",
            1.0,
        ),
        ("def f(n):\n    raise AssertionError\n", "try:\n    f(1)\nexcept AssertionError:\n    pass\nassert 1", 0.0),
        ("def f(n):\n    raise StopIteration\n", "assert all(map(lambda n: f(n) == 1, range(3)))", 0.0),
    ],
)
def test_scripts_run_beside_the_program_and_exchange_plain_data_with_it(program, test, score):
    assert judged(program, test_list=[test]).score == score


def test_test_functions_that_import_the_solution_are_run():
    test = "from solution import f\n\ndef test_it():\n    assert f(2) == 4\n"
    assert judged(DOUBLE, test=test) == 1.0
    assert judged("def f(n):\n    return 3\n", test=test).reason == "wrong"


def test_a_script_calls_an_imported_name_by_its_name_in_the_script():
    test = "from solution import f as double\n\ndef test_it():\n    assert double(2) == 4\n"
    assert judged(DOUBLE, test=test) == 1.0


@pytest.mark.parametrize("test", ["if False:\n    assert f(2) == 4", "import sys\nif sys.argv[5:]:\n    assert f(1)"])
def test_a_script_that_calls_nothing_is_not_passed(test):
    verdict = judged(DOUBLE, test=f"from solution import f\n{test}\n")
    assert (verdict.score, verdict.reason) == (0.0, "error")
    assert "without a call of the program" in verdict.detail


def test_each_call_meets_a_fresh_process():
    program = "calls = []\ndef f(n):\n    calls.append(n)\n    return len(calls)\n"
    assert judged(program, test_list=["assert f(1) == 1", "assert f(2) == 1"]) == 1.0
    assert judged(program, test_list=["for n in range(3):\n    assert f(n) == 1"]) == 1.0


def test_an_argument_that_is_changed_in_place_is_changed_in_the_program_only():
    """Otherwise a program could empty the list that the test compares with."""
    program = "def f(numbers):\n    numbers.clear()\n    return numbers\n"
    assert judged(program, test_list=["x = [1, 2]\nassert f(x) == x"]) == 0.0


def test_objects_of_the_programs_own_classes_are_made_in_its_process():
    program = "class Pair:\n    def __init__(self, a):\n        self.a = a\ndef f(pair):\n    return pair.a\n"
    assert judged(program, test_list=["assert f(Pair(3)) == 3"]) == 1.0
    assert judged(program, test_list=["assert f(p) == 3"], test_setup_code="p = Pair(3)") == 1.0


def test_apps_wraps_results_and_knows_no_tuples():
    row = {"input_output": {"inputs": [[1], [2]], "outputs": [[[1, 2]], [[2, 3]]], "fn_name": "f"}}
    assert judged("def f(n):\n    return (n, n + 1)\n", **row) == 1.0
    assert judged("def f(n):\n    return [n, n + 1]\n", **row) == 1.0
    assert judged("def f(n):\n    return [n, n]\n", **row) == 0.0


def test_programs_that_nobody_waits_for_are_not_run():
    """The interpreter waits for the runner's threads before it exits; a closed runner leaves no process behind."""
    runner, over, raised = CodeRunner({}, size=1), threading.Event(), []
    endless = {"completion": fenced("import time\ndef f(n):\n    time.sleep(600)\n"), **CALLS}

    def work():
        with pytest.raises(Abandoned):
            runner.run([endless] * 100, {"wall": 2.0, "cpu": 2.0}, 2.0, over)
        raised.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    while runner._sandbox is None or not runner._sandbox._all:
        assert thread.is_alive()
        time.sleep(0.01)
    sandbox = runner._sandbox
    over.set()
    runner.close()
    thread.join(timeout=120)
    assert raised == [True], "it does not run a hundred programs first"
    assert sandbox._all == []


def test_all_tests_of_a_program_have_one_clock():
    """There are a hundred tests of 0.4 s each, with 1 s for all."""
    program = "import time\ndef f(n):\n    time.sleep(0.4)\n    return 2 * n\n"
    row = {"tests": [{"input": [n], "output": 2 * n} for n in range(100)], "entry_point": "f"}
    runner = CodeRunner({}, size=1)
    try:
        [late] = runner.run([{"completion": fenced(program), **row}], {}, 1.0)
        [script] = runner.run(
            [{"completion": fenced(program), "test_list": ["for n in range(99):\n    assert f(n) == 2 * n"]}], {}, 1.0
        )
    finally:
        runner.close()
    assert late.verdict is not None
    assert script.verdict is not None
    assert max(late.seconds, script.seconds) < 30
    assert late.verdict["reason"] == script.verdict["reason"] == "timeout"


class Broken:
    """A sandbox that fails a given number of times."""

    def __init__(self, times: int, working: Any) -> None:
        self.times, self.working = times, working

    def start(self, *given: Any, **named: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise SandboxUnavailable(given="the fork-server ended")
        return self.working.start(*given, **named)


def test_a_sandbox_that_fails_is_tried_once_more_and_then_leaves_no_score():
    runner = CodeRunner({})
    runner.run([], {}, 60.0)
    once, twice = Broken(1, runner._sandbox), Broken(2, runner._sandbox)
    try:
        assert judged(DOUBLE, **CALLS, sandbox=once) == 1.0
        verdict = judged(DOUBLE, **CALLS, sandbox=twice)
    finally:
        runner.close()
    assert (verdict.score, verdict.reason) == (None, "error")
    assert "the fork-server ended" in verdict.detail


def test_limits_are_settings():
    greedy = "def f(n):\n    return len(bytearray(300 << 20)) and 2 * n\n"
    assert judged(greedy, **CALLS) == 1.0
    assert judged(greedy, **CALLS, memory=200 << 20).reason == "error"
    loud = "def f(n):\n    print('x' * 5000)\n    return 2 * n\n"
    assert judged(loud, **CALLS) == 1.0
    assert "wrote too much" in judged(loud, **CALLS, output=1000).detail
    busy = "def f(n):\n    while True: pass\n"
    assert "cpu time" in judged(busy, **CALLS, cpu=1.0, wall=60.0).detail
    with pytest.raises(ConfigError, match="sandbox limit wall = -1"):
        judged(DOUBLE, **CALLS, wall=-1)
    with pytest.raises(ConfigError, match="sandbox = 'docker'"):
        judged(DOUBLE, **CALLS, sandbox="docker")


def test_a_run_scores_a_step_in_order_and_keeps_the_reasons(children):
    row = prompt(7, test_list=["assert f(1) == 2"])
    texts = [fenced(DOUBLE), "no", fenced("def f(n):\n    return 0\n"), fenced("def f(n):\n    return n / 0\n")] * 3
    with build_rewards([Reward(name="code", timeout=120, settings=PATIENT)]) as rewards:
        rewards.check([row])
        scores = rewards.score([row], [[completion(text) for text in texts]])
    assert scores.rewards_PG == [[1.0, 0.0, 0.0, 0.0] * 3]
    reasons = [verdict.reason for verdict in scores.verdicts["code"][0] if verdict is not None]
    assert reasons == ["correct", "no_answer", "wrong", "error"] * 3
    assert children() == []


def test_a_row_whose_tests_cannot_be_read_stops_the_run_before_it_starts():
    rows = [prompt(7, test_list=["assert f(1) == 2"]), prompt(8, test_list=["f(1) == 2"])]
    with build_rewards(["code"]) as rewards, pytest.raises(DataError, match="row 8: a test without an assert"):
        rewards.check(rows)
    with build_rewards(["code"]) as rewards, pytest.raises(DataError, match="row 9: a row without tests"):
        rewards.check([prompt(9, answer="4")])


def test_a_setting_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"has no setting 'partail'.*partial"):
        build_rewards([Reward(name="code", settings={"partail": True})])


def test_the_function_and_its_verdicts_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(code)) is code
    verdict = judged(DOUBLE, **CALLS)
    assert pickle.loads(pickle.dumps(verdict)).detail == verdict.detail
