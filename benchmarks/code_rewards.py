"""Cost and accuracy of code rewards on this machine: `python benchmarks/code_rewards.py [--data FOLDER]`.

    honest       reference solutions of HumanEval and MBPP: each must pass
    mutated      the same with one change to an operator, a comparison or a result: the number that still passes
    throughput   runs per second: one run is one process, one test and one verdict
    hostile      time to a verdict on programs that hang, or write or allocate memory without end

Data: humaneval.jsonl and mbpp.jsonl as their authors publish them. The result is written to benchmarks/results.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from posttrain.errors import SandboxUnavailable
from posttrain.rewards.calls import Outcome
from posttrain.rewards.code_runner import CodeRunner
from posttrain.verify.programs.attacks import ATTACKS, CALL_TESTS, HONEST, Scene, fenced

RESULTS = Path(__file__).parent / "results" / "code_rewards.json"
DATA = Path(__file__).parents[2] / "shared" / "data" / "code"
SECONDS = 30.0
"""Time limit for all tests of one program, in seconds."""
HOSTILE = (
    "busy", "busy_in_c", "busy_on_import", "sleep", "deaf", "regular_expression", "memory", "memory_in_steps",
    "threads", "forks", "output", "errors", "large_text", "large_list", "endless_iterator", "recursion_without_limit",
)  # fmt: skip

Rows = list[tuple[str, str, dict[str, Any]]]
"""Name, reference solution, and columns with the tests."""


def references(folder: Path) -> Rows:
    rows: Rows = []
    for line in (folder / "humaneval.jsonl").read_text().splitlines():
        row = json.loads(line)
        columns = {name: row[name] for name in ("prompt", "test", "entry_point")}
        rows.append((row["task_id"], row["prompt"] + row["canonical_solution"], columns))
    for line in (folder / "mbpp.jsonl").read_text().splitlines():
        row = json.loads(line)
        columns = {name: row[name] for name in ("test_list", "test_setup_code", "challenge_test_list")}
        rows.append((f"MBPP/{row['task_id']}", row["code"], columns))
    return rows


def mutants(source: str) -> Iterator[str]:
    """Yield versions of a program with one change: to an operator, a comparison or a result."""
    count = sum(1 for _ in ast.walk(ast.parse(source)))
    for place in range(count):
        tree = ast.parse(source)
        node = list(ast.walk(tree))[place]
        if _change(node):
            yield ast.unparse(tree)


def _change(node: ast.AST) -> bool:
    swaps: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Mult}
    compares: dict[type, type] = {ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
    if isinstance(node, ast.BinOp) and type(node.op) in swaps:
        node.op = swaps[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in compares:
        node.ops[0] = compares[type(node.ops[0])]()
    elif isinstance(node, ast.Return) and node.value is not None:
        node.value = ast.List(elts=[node.value], ctx=ast.Load())
    else:
        return False
    return True


def judge(runner: CodeRunner, programs: list[tuple[str, dict[str, Any]]], **settings: Any) -> list[Outcome]:
    return runner.run([{"completion": fenced(source), **columns} for source, columns in programs], settings, SECONDS)


def reason(outcome: Outcome) -> str:
    return f"{outcome.verdict['reason']}: {outcome.verdict['detail']}" if outcome.verdict else outcome.message


def honest(runner: CodeRunner, rows: Rows) -> dict[str, Any]:
    began = time.perf_counter()
    outcomes = judge(runner, [(source, columns) for _, source, columns in rows])
    failed = {name: reason(outcome) for (name, *_), outcome in zip(rows, outcomes, strict=True) if outcome.value != 1.0}
    return {"programs": len(rows), "failed": failed, "seconds": round(time.perf_counter() - began, 1)}


def mutated(runner: CodeRunner, rows: Rows, per_row: int) -> dict[str, Any]:
    """Count the mutants that pass, and name the rows whose tests accept results of any type. Some mutants are correct,
    such as `n <= 0` for `n < 1`."""
    programs = [(name, mutant, columns) for name, source, columns in rows for mutant in _spread(source, per_row)]
    outcomes = judge(runner, [(mutant, columns) for _, mutant, columns in programs], wall=2.0, cpu=1.0)
    passed = [name for (name, *_), outcome in zip(programs, outcomes, strict=True) if outcome.value == 1.0]
    wrapped = [(name, _wrapped(source), columns) for name, source, columns in rows]
    found = judge(runner, [(source, columns) for _, source, columns in wrapped])
    anything = [name for (name, *_), outcome in zip(wrapped, found, strict=True) if outcome.value == 1.0]
    return {"mutants": len(programs), "passed": len(passed), "wrong_type_passed": anything}


def _spread(source: str, number: int) -> list[str]:
    found = list(mutants(source))
    return found[:: max(1, len(found) // number)][:number] if number else []


def _wrapped(source: str) -> str:
    """The program with every returned value inside a list, so that all results have the wrong type."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return):
            node.value = ast.List(elts=[node.value or ast.Constant(None)], ctx=ast.Load())
    return ast.unparse(ast.fix_missing_locations(tree))


def throughput(runner: CodeRunner, programs: int = 400) -> dict[str, float]:
    """Runs per second and CPU time per run, for a correct program with three tests. Runs per second depend on other
    load of the machine; CPU time hardly does."""
    judge(runner, [(HONEST, CALL_TESTS)] * 20)
    began, used = time.perf_counter(), _processor_time()
    outcomes = judge(runner, [(HONEST, CALL_TESTS)] * programs)
    seconds, used = time.perf_counter() - began, _processor_time() - used
    assert all(outcome.value == 1.0 for outcome in outcomes)
    runs = programs * len(CALL_TESTS["tests"])
    return {"runs_per_second": round(runs / seconds, 1), "cpu_ms_per_run": round(1000 * used / runs, 2)}


def _processor_time() -> float:
    """CPU seconds of this process and its descendants."""
    mine = psutil.Process()
    times = [process.cpu_times() for process in mine.children(recursive=True)]
    below = sum(t.user + t.system + t.children_user + t.children_system for t in times)
    return below + mine.cpu_times().user + mine.cpu_times().system


def hostile(runner: CodeRunner) -> dict[str, float]:
    """Time from the call to the verdict for each hostile program, in seconds, one at a time. The deadline is 4 s."""
    found = {}
    for name in HOSTILE:
        attack = next(attack for attack in ATTACKS if attack.name == name)
        began = time.perf_counter()
        [outcome] = judge(runner, [(attack.source(Scene()), CALL_TESTS)])
        assert outcome.value == 0.0, name
        found[name] = round(time.perf_counter() - began, 2)
    return found


def measure(tier: str, rows: Rows, per_row: int, hostile_too: bool) -> dict[str, Any]:
    runner = CodeRunner({"sandbox": tier})
    try:
        parts: dict[str, Any] = throughput(runner)
        if hostile_too:
            parts["hostile_seconds"] = hostile(runner)
        if rows:
            parts |= {"honest": honest(runner, rows)}
        if rows and per_row:
            parts |= {"mutated": mutated(runner, rows, per_row)}
        return parts
    finally:
        runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--mutants", type=int, default=2, help="per row")
    parser.add_argument("--tiers", nargs="+", default=["landlock", "bubblewrap"])
    parser.add_argument("--quick", action="store_true", help="throughput only; nothing is written")
    options = parser.parse_args()
    rows = references(options.data) if options.data.is_dir() and not options.quick else []
    report: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.platform()}, Python {platform.python_version()}",
        "load_before": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }
    for number, tier in enumerate(options.tiers):
        try:
            report[tier] = measure(tier, rows, 0 if number else options.mutants, not options.quick)
        except SandboxUnavailable as error:
            report[tier] = {"unavailable": error.given}
        print(tier, json.dumps(report[tier], indent=2))
    if not options.quick:
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
