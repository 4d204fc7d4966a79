"""Reference solutions of HumanEval and MBPP, as their authors publish them, pass; changed solutions do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks.code_rewards import honest, mutants, mutated, references

from posttrain.rewards.code_runner import CodeRunner

DATA = Path(__file__).parents[4] / "shared" / "data" / "code"
SLOW = {"MBPP/123"}
"""Its reference solution computes for 2 seconds on a fast machine."""


@pytest.fixture(scope="module")
def rows():
    if not (DATA / "mbpp.jsonl").exists():
        pytest.skip("needs humaneval.jsonl and mbpp.jsonl in ../shared/data/code")
    return [row for row in references(DATA) if row[0] not in SLOW]


class Patient(CodeRunner):
    """A runner with enough time for solutions that end on their own, even on a busy machine."""

    def run(self, calls, settings, timeout, over=None):
        return super().run(calls, {"wall": 60.0, "cpu": 20.0} | settings, 300.0, over)


@pytest.fixture
def runner():
    runner = Patient({})
    yield runner
    runner.close()


@pytest.mark.slow
def test_reference_solutions_pass_and_solutions_of_another_type_do_not(rows, runner):
    """One row in 120, and the rows whose tests have an unusual form."""
    unusual = {"HumanEval/32", "HumanEval/33", "HumanEval/38", "HumanEval/50", "HumanEval/53"}
    unusual |= {f"MBPP/{number}" for number in (40, 126, 367, 414, 486, 533, 596, 601, 912, 927)}
    some = rows[::120] + [row for row in rows if row[0] in unusual]
    assert honest(runner, some)["failed"] == {}
    assert mutated(runner, some, per_row=0)["wrong_type_passed"] == []


@pytest.mark.slow
def test_all_reference_solutions_pass(rows, runner):
    assert len(rows) == 164 + 974 - len(SLOW)
    assert honest(runner, rows)["failed"] == {}


@pytest.mark.slow
def test_completions_that_continue_the_prompt_pass_as_well(rows, runner):
    """A base model writes such completions: the body of the function, without a code fence."""
    bodies = [(name, source.removeprefix(row["prompt"]), row) for name, source, row in rows if "entry_point" in row]
    calls = [{"completion": body + "\n\n\nprint(0", **row} for _, body, row in bodies[::40]]
    assert [outcome.value for outcome in runner.run(calls, {}, 30.0)] == [1.0] * len(calls)


def test_a_mutant_differs_in_one_place():
    source = "def f(a, b):\n    if a < b:\n        return a + 1\n    return b\n"
    found = list(mutants(source))
    assert len(found) == len(set(found)) == 4
    assert all(ast.parse(mutant) for mutant in found)
    assert "return a - 1" in "".join(found)
