"""The verifier `code`: does the program in a completion pass its tests? `rewards/code_runner.py` judges whole steps.

>>> code("```python\\ndef f(n): return n + 1\\n```", tests=[{"input": [1], "output": 2}], entry_point="f").reason
'correct'
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from posttrain.errors import ConfigError
from posttrain.verify.programs.bench import Rules
from posttrain.verify.programs.examine import examine
from posttrain.verify.programs.program import find_program
from posttrain.verify.programs.suite import COLUMNS, Suite, read_suite
from posttrain.verify.sandbox import Limits, Sandbox, open_sandbox
from posttrain.verify.verdict import Verdict

SECONDS = 10.0
"""Seconds for all tests of one program together, unless a reward's `timeout` says otherwise."""
MESSAGE = 1 << 22
"""Maximum size of one answer, in bytes."""


def code(
    completion: Any,
    *,
    prompt: Any = None,
    truncated: bool = False,
    tests: Any = None,
    test_list: Any = None,
    test_setup_code: Any = None,
    test_imports: Any = None,
    challenge_test_list: Any = None,
    test: Any = None,
    entry_point: Any = None,
    input_output: Any = None,
    verification_info: Any = None,
    answer: Any = None,
    partial: bool = False,
    float_ok: bool | None = None,
    tolerance: float = 0.0,
    sandbox: str | Sandbox = "auto",
    wall: float = 4.0,
    cpu: float = 3.0,
    memory: int = 1 << 30,
    output: int = 1 << 16,
) -> Verdict:
    """Whether the program in a completion passes its tests. With `partial`, the share of the tests that it passes.

    The tests come from the row's columns (see `suite`). SandboxUnavailable if no tier works on this machine: a model's
    programs never run without a sandbox. DataError for tests that cannot be read.

    `float_ok`: a float may replace an integer, and an integer a float. By default values are compared by type and
    value, and an assertion in the data means Python's `==`.
    `tolerance`: for returned floats and printed numbers, relative or absolute, whichever is larger.
    `wall`, `cpu` (seconds), `memory` and `output` (bytes) are the limits of one test.
    """
    row = {name: value for name, value in locals().items() if name in COLUMNS}
    limits = Limits(wall=wall, cpu=cpu, memory=memory, output=output, message=MESSAGE)
    rules = rules_of(SECONDS, partial, float_ok, tolerance, limits)
    suite = read_suite(row | {"prompt": prompt}, bare=is_bare(sandbox))
    return judge_completion(
        completion, suite, _shared(sandbox) if isinstance(sandbox, str) else sandbox, rules, truncated
    )


def judge_completion(completion: Any, suite: Suite, sandbox: Sandbox, rules: Rules, truncated: bool) -> Verdict:
    """Find the program in a completion and judge it by the tests."""
    found = find_program(completion, prompt=suite.prompt, function=suite.function, truncated=truncated)
    if found.reason:
        return Verdict(0.0, found.reason)
    return examine(found.source, suite, sandbox, rules)


_SHARED: dict[tuple[int, str], Sandbox] = {}
"""Open sandboxes, by process (because a fork-server has one owner) and kind."""
_OPENING = threading.Lock()


def is_bare(sandbox: Any) -> bool:
    """Whether the sandbox has only the standard library. A container image may have more."""
    return not str(getattr(sandbox, "tier", sandbox)).startswith("container")


def _shared(kind: str) -> Sandbox:
    key = (os.getpid(), kind)
    with _OPENING:
        if key not in _SHARED:
            _SHARED[key] = open_sandbox(kind)
        return _SHARED[key]


@atexit.register
def _close_shared() -> None:
    for (owner, _), sandbox in _SHARED.items():
        if owner == os.getpid():
            sandbox.close()


def rules_of(seconds: float, partial: bool, float_ok: bool | None, tolerance: float, limits: Limits) -> Rules:
    if not tolerance >= 0:
        raise ConfigError(given=f"tolerance = {tolerance}", allowed="0 or more")
    return Rules(limits=limits, seconds=seconds, partial=partial, float_ok=float_ok, tolerance=tolerance)
