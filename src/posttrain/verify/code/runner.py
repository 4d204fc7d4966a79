"""The verifier `code`: as a function for one completion, and as the runner that a run's rewards use for all of a step.

>>> code("```python\\ndef f(n): return n + 1\\n```", tests=[{"input": [1], "output": 2}], entry_point="f").reason
'correct'
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from posttrain.control_groups import cores
from posttrain.errors import ConfigError
from posttrain.rewards.calls import Abandoned, Outcome, run_call
from posttrain.rewards.verdict import Verdict
from posttrain.verify.code.bench import Rules
from posttrain.verify.code.examine import examine
from posttrain.verify.code.program import find_program
from posttrain.verify.code.suite import COLUMNS, Suite, read_suite
from posttrain.verify.sandbox import UNSAFE, Limits, Sandbox, open_sandbox

SECONDS = 10.0
"""For all tests of one program together, where no reward's `timeout` says otherwise."""
MESSAGE = 1 << 22
"""Bytes of one answer."""


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
    """Whether the program in a completion passes its tests; `partial` gives the share that it passes.

    The tests are those of the row's columns (see `suite`). SandboxUnavailable when no tier works here: programs of a
    model are never run without one. DataError for tests that cannot be read.

    `float_ok`: a float may stand for an integer and an integer for a float. By default values are compared by type and
    value, and an assertion of the data means Python's `==`.
    `tolerance`: relative or absolute, whichever is larger, of floats that are returned and numbers that are printed.
    `wall`, `cpu` (seconds), `memory` and `output` (bytes) are the limits of one test.
    """
    row = {name: value for name, value in locals().items() if name in COLUMNS}
    limits = Limits(wall=wall, cpu=cpu, memory=memory, output=output, message=MESSAGE)
    rules = _rules(SECONDS, partial, float_ok, tolerance, limits)
    suite = read_suite(row | {"prompt": prompt}, bare=_is_bare(sandbox))
    return _verdict(completion, suite, _shared(sandbox) if isinstance(sandbox, str) else sandbox, rules, truncated)


def _verdict(completion: Any, suite: Suite, sandbox: Sandbox, rules: Rules, truncated: bool) -> Verdict:
    """The program that is found, judged by the tests."""
    found = find_program(completion, prompt=suite.prompt, function=suite.function, truncated=truncated)
    if found.reason:
        return Verdict(0.0, found.reason)
    return examine(found.source, suite, sandbox, rules)


class CodeRunner:
    """Judges the completions of a step side by side, one after the other in each thread. Owns its sandbox."""

    def __init__(self, settings: Mapping[str, Any], size: int | None = None) -> None:
        """`size` programs run at a time; by default one per core."""
        self._kind = settings.get("sandbox", "auto")
        self._size = size or cores()
        self._sandbox: Sandbox | None = None

    def run(
        self,
        calls: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        timeout: float,
        over: threading.Event | None = None,
    ) -> list[Outcome]:
        """One outcome per call, in order; `timeout` is for all tests of one program together.

        The first call opens the sandbox, which is when a dataset is checked. SandboxUnavailable when there is none.
        """
        self._sandbox = sandbox = self._sandbox or open_sandbox(self._kind, size=self._size)
        limits = Limits(**{name: settings[name] for name in _LIMITS if name in settings}, message=MESSAGE)
        options = (settings.get("partial", False), settings.get("float_ok"), settings.get("tolerance", 0.0))
        rules = _rules(timeout, *options, limits)
        fixed = {name: value for name, value in settings.items() if name in COLUMNS}
        suites: dict[tuple[int, ...], Suite] = {}

        def judge(completion: Any, truncated: bool = False, **row: Any) -> Verdict:
            key = tuple(id(row.get(name)) for name in ("prompt", *COLUMNS))  # the completions of a prompt share them
            if key not in suites:
                suites[key] = read_suite(fixed | row, bare=_is_bare(self._kind))
            return _verdict(completion, suites[key], sandbox, rules, truncated)

        def outcome(call: Mapping[str, Any]) -> Outcome:
            if over is not None and over.is_set():
                raise Abandoned  # leaving the pool, which the interpreter waits for at its end, without the rest
            return run_call(judge, call, {})

        try:
            with ThreadPoolExecutor(self._size, thread_name_prefix="code") as threads:
                return list(threads.map(outcome, calls))
        finally:
            if self._sandbox is not sandbox:  # closed meanwhile: programs that were running had started it anew
                sandbox.close()

    @property
    def notes(self) -> Sequence[str]:
        return [UNSAFE] if self._kind == "unsafe" else []

    @property
    def facts(self) -> Sequence[str]:
        return [f"programs are run in the sandbox {self._sandbox.tier}"] if self._sandbox is not None else []

    def close(self) -> None:
        """End its processes."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


_LIMITS = ("wall", "cpu", "memory", "output")
_SHARED: dict[tuple[int, str], Sandbox] = {}
"""By process, since a fork-server has one owner, and kind."""
_OPENING = threading.Lock()


def _is_bare(sandbox: Any) -> bool:
    """Whether it has the standard library only; an image may have more."""
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


def _rules(seconds: float, partial: bool, float_ok: bool | None, tolerance: float, limits: Limits) -> Rules:
    if not tolerance >= 0:
        raise ConfigError(given=f"tolerance = {tolerance}", allowed="0 or more")
    return Rules(limits=limits, seconds=seconds, partial=partial, float_ok=float_ok, tolerance=tolerance)
