"""Judge one program by its tests. Expected values stay here, and only the calls go into the sandbox, one per test.

A program that is late, crashes or writes nonsense has failed the test and scores 0. If the sandbox itself fails, it is
tried once more. After a second failure the program has no score.
"""

from __future__ import annotations

import re
import time
from typing import Any

from posttrain.verify.programs.bench import Bench, Problem, Rules, script_driver
from posttrain.verify.programs.compare import Equality, same, same_output
from posttrain.verify.programs.plain import NotPlain, dump, load, pack
from posttrain.verify.programs.rewrite import Call, Script, implied_imports
from posttrain.verify.programs.suite import Stdio, Suite, Test, Value
from posttrain.verify.sandbox import Limits, Process, Sandbox, SandboxUnavailable
from posttrain.verify.verdict import Verdict

MAX_CALLS = 2_000
"""Maximum number of calls to the program that one script may make."""

_NAN = re.compile(rb'\{"(?:f":"nan"|c":\["nan"|c":\["[^"]*","nan")')
"""A NaN in a packed value. Quotes within texts are escaped. `not abs(nan - 1) > 0.1` and `max(0.0, nan) < 0.1` are
true, so a NaN would pass tests whose author did not think of it."""


def examine(program: str, suite: Suite, sandbox: Sandbox, rules: Rules) -> Verdict:
    """Run the tests in order, up to the first failure; with `partial`, up to the first timeout."""
    began = time.perf_counter()
    bench = Bench(sandbox, rules)
    first: Problem | None = None
    passed, detail = 0, f"{len(suite.tests)} of {len(suite.tests)} tests"
    try:
        for number, test in enumerate(suite.tests, 1):
            problem = _problem(program, test, bench)
            if problem is None:
                passed += 1
            elif first is None:
                first, detail = problem, f"test {number} of {len(suite.tests)}: {problem.detail}"
            if problem is not None and (not rules.partial or problem.reason == "timeout"):
                break
    except SandboxUnavailable as error:
        return Verdict(None, "error", extracted=program, detail=str(error), seconds=time.perf_counter() - began)
    share = passed / len(suite.tests)
    reason = "correct" if first is None else "partial" if rules.partial and passed else first.reason
    score = share if rules.partial else float(first is None)
    return Verdict(score, reason, extracted=program, detail=detail, seconds=time.perf_counter() - began)


def _problem(program: str, test: Test, bench: Bench) -> Problem | None:
    """Run one test. None if it passed."""
    if bench.late:
        return bench.too_late
    if isinstance(test, Script):
        return run_script(program, test, bench)
    if isinstance(test, Stdio):
        room = 2 * len(test.output.encode("utf-8", "replace"))  # the limit is meant for output that was not asked for
        ran = bench.run(program, test.input.encode("utf-8", "replace"), output=room)
        if isinstance(ran, Problem):
            return ran
        written = ran.stdout.decode("utf-8", "replace")
        if same_output(test.output, written, tolerance=bench.rules.tolerance):
            return None
        return Problem("wrong", f"wrote {short(written)} for the input {short(test.input)}, not {short(test.output)}")
    answer = bench.ask(_task(program, test))
    if isinstance(answer, Problem):
        return answer
    if answer.error:
        return Problem("error", f"{_shown(test)} raised {answer.error}: {answer.text}")
    return _compare(test, answer.value, bench.rules)


def _task(program: str, test: Value | Call) -> dict[str, Any]:
    if isinstance(test, Call):
        return {"program": program, "setup": test.setup, "expression": test.expression}
    values = {"arguments": pack(list(test.arguments)), "keywords": pack(dict(test.keywords))}
    return {"program": program, "setup": "", "expression": "", "target": test.function, **values}


def _compare(test: Value | Call, given: Any, rules: Rules) -> Problem | None:
    if isinstance(test, Value):
        given = _as_json(given) if test.tuple_ok else given
        accepted = _as_json(test.expected) if test.tuple_ok else test.expected
        holds = any(same(expected, given, _equality(test, rules), tolerance=rules.tolerance) for expected in accepted)
        wanted = short(accepted[0])
    elif test.relation in ("true", "false"):
        holds, wanted = bool(given) is (test.relation == "true"), f"something that is {test.relation}"
    else:
        negated = test.relation in ("unequal", "is not")  # a stricter equality would make these weaker
        equality = "python" if test.relation == "unequal" else _equality(test, rules)
        holds = same(test.expected, given, equality) is not negated
        wanted = ("anything but " if negated else "") + short(test.expected)
    return None if holds else Problem("wrong", f"{_shown(test)} gave {short(given)}, not {wanted}")


def _equality(test: Value | Call, rules: Rules) -> Equality:
    """The equality for a test. By default, values are compared exactly, and assertions as their author wrote them."""
    if isinstance(test, Call) and test.relation in ("is", "is not"):
        return "exact"
    if rules.float_ok is None:
        return "exact" if isinstance(test, Value) else "python"
    return "float_ok" if rules.float_ok else "exact"


def _as_json(value: Any) -> Any:
    """The value as JSON can write it: with lists for tuples, and with text for integers as keys, at any depth."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    written = {_written(key): _as_json(item) for key, item in value.items()}
    return written if len(written) == len(value) else value  # {1: 2, "1": 3} is nothing that JSON can write


def _written(key: Any) -> Any:
    return str(key) if type(key) is int and key.bit_length() < 1_000 else key  # Python prints no larger numbers


def _shown(test: Value | Call) -> str:
    if isinstance(test, Call):
        return short(test.expression, quoted=False)
    return f"{test.function}({', '.join(short(argument) for argument in test.arguments)})"


def short(value: Any, *, quoted: bool = True) -> str:
    """A value in at most 60 characters, for a message. Numbers may have more digits than Python prints."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:
        text = "a number of many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def run_script(program: str, script: Script, bench: Bench) -> Problem | None:
    """Run a script of assertions. None if all of them held.

    The assertions run in one sandbox, and each call of the program in another. They exchange plain data through this
    process. The program therefore cannot reach its judge: not with objects that equal everything, not with a patched
    `assert`, and not by ending early.
    """
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
        for calls in range(MAX_CALLS):
            message = _next(checker, bench)
            if isinstance(message, Problem):
                return message
            if "call" not in message:
                if message["passed"] is True and not calls:
                    return Problem("error", "the tests held without a call of the program, so they say nothing")
                return None if message["passed"] is True else _failed(message)
            answer = bench.ask({"program": program, "setup": "", "expression": "", **message["call"]})
            if isinstance(answer, Problem):
                return answer
            reply = dump(
                {"error": answer.error, "text": answer.text} if answer.error else {"value": pack(answer.value)}
            )
            if _NAN.search(reply) and "nan" not in script.source.casefold():
                return Problem("wrong", f"{message['call']['target']} returned a NaN")
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
