"""Runs the verifier `code` for all completions of a step: many programs at the same time, in its own sandbox."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from posttrain.control_groups import cores
from posttrain.rewards.calls import Abandoned, Outcome, run_call
from posttrain.verify.programs.suite import COLUMNS, Suite, read_suite
from posttrain.verify.programs.verify import MESSAGE, is_bare, judge_completion, rules_of
from posttrain.verify.sandbox import UNSAFE, Limits, Sandbox, open_sandbox
from posttrain.verify.verdict import Verdict

LIMITS = ("wall", "cpu", "memory", "output")
"""Settings that limit one test."""


class CodeRunner:
    """Judges the completions of a step in several threads, one after the other in each. Owns its sandbox."""

    def __init__(self, settings: Mapping[str, Any], size: int | None = None) -> None:
        """`size` programs run at the same time; by default one per core."""
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
        """One outcome per call, in order. `timeout` limits all tests of one program together.

        The first call opens the sandbox. That is when a dataset is checked. SandboxUnavailable if there is no sandbox.
        """
        self._sandbox = sandbox = self._sandbox or open_sandbox(self._kind, size=self._size)
        limits = Limits(**{name: settings[name] for name in LIMITS if name in settings}, message=MESSAGE)
        options = (settings.get("partial", False), settings.get("float_ok"), settings.get("tolerance", 0.0))
        rules = rules_of(timeout, *options, limits)
        fixed = {name: value for name, value in settings.items() if name in COLUMNS}
        suites: dict[tuple[int, ...], Suite] = {}

        def judge(completion: Any, truncated: bool = False, **row: Any) -> Verdict:
            key = tuple(id(row.get(name)) for name in ("prompt", *COLUMNS))  # the completions of a prompt share them
            if key not in suites:
                suites[key] = read_suite(fixed | row, bare=is_bare(self._kind))
            return judge_completion(completion, suites[key], sandbox, rules, truncated)

        def outcome(call: Mapping[str, Any]) -> Outcome:
            if over is not None and over.is_set():
                raise Abandoned  # skip the rest: the interpreter waits for this pool when it exits
            return run_call(judge, call, {})

        try:
            with ThreadPoolExecutor(self._size, thread_name_prefix="code") as threads:
                return list(threads.map(outcome, calls))
        finally:
            if self._sandbox is not sandbox:  # closed meanwhile: running programs have started it again
                sandbox.close()

    @property
    def notes(self) -> Sequence[str]:
        return [UNSAFE] if self._kind == "unsafe" else []

    @property
    def facts(self) -> Sequence[str]:
        return [f"programs are run in the sandbox {self._sandbox.tier}"] if self._sandbox is not None else []

    def close(self) -> None:
        """End the processes of the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
