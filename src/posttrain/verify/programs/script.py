"""Assertions that are no plain calls: they run in one sandbox, and each call of the program in another.

The two exchange plain data, through this process. So the program cannot reach what judges it: not with objects that are
equal to everything, not with a patched `assert`, not by ending early.
"""

from __future__ import annotations

import re
from typing import Any

from posttrain.verify.programs.bench import Bench, Problem
from posttrain.verify.programs.bundle import script_driver
from posttrain.verify.programs.plain import NotPlain, dump, load, pack
from posttrain.verify.programs.rewrite import Script, implied_imports
from posttrain.verify.sandbox import Limits, Process, SandboxUnavailable

MAX_CALLS = 2_000
"""Calls of the program that one script may make."""

_NAN = re.compile(rb'\{"(?:f":"nan"|c":\["nan"|c":\["[^"]*","nan")')
"""In a packed value; quotes within texts are escaped. `not abs(nan - 1) > 0.1` and `max(0.0, nan) < 0.1` hold, so that
a NaN would pass tests whose author did not think of it."""


def run_script(program: str, script: Script, bench: Bench) -> Problem | None:
    """None when every assertion held."""
    try:
        return _run(program, script, bench)
    except SandboxUnavailable:
        return _run(program, script, bench)


def _run(program: str, script: Script, bench: Bench) -> Problem | None:
    imports = "".join(f"import {name}\n" for name in implied_imports(script.source))
    task = {"helpers": script.helpers, "functions": dict(script.functions), "script": imports + script.source}
    usual, left = bench.rules.limits, max(1.0, bench.left)
    limits = Limits(wall=left, cpu=left, memory=usual.memory, output=usual.output, message=usual.message)
    with bench.sandbox.start(script_driver(), limits=limits) as checker:
        checker.send(dump(task))
        for _ in range(MAX_CALLS):
            message = _next(checker, bench)
            if isinstance(message, Problem):
                return message
            if "call" not in message:
                return None if message["passed"] is True else _failed(message)
            answer = bench.ask({"program": program, "setup": "", "expression": "", **message["call"]})
            if isinstance(answer, Problem):
                return answer
            reply = dump(
                {"error": answer.error, "text": answer.text} if answer.error else {"value": pack(answer.value)}
            )
            if _NAN.search(reply) and "nan" not in script.source.casefold():
                return Problem("wrong", f"{message['call']['target']} gave a NaN")
            checker.send(reply)
    return Problem("error", f"the tests called the program more than {MAX_CALLS} times")


def _next(checker: Process, bench: Bench) -> dict[str, Any] | Problem:
    try:
        return load(checker.receive(bench.left))
    except TimeoutError:
        return bench.too_late
    except (EOFError, NotPlain) as error:
        if bench.late:
            return bench.too_late
        return Problem("error", f"the tests ended without a verdict: {error}")


def _failed(message: dict[str, Any]) -> Problem:
    kind = str(message["error"])
    reason = "wrong" if kind == "AssertionError" else "error"
    return Problem(reason, f"{kind}: {message['text']}".rstrip(": "))
