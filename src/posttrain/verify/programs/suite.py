"""The tests of a row, read from the columns of common datasets. Unreadable tests raise DataError when data is loaded.

    test_list, test_setup_code, test_imports, challenge_test_list      MBPP: assertions
    test + entry_point (+ prompt)                                      HumanEval, HumanEval+, LeetCode: check(candidate)
    tests                                                              a list of {"input", "output"} or of assertions
    input_output                                                       APPS, TACO: {"inputs", "outputs", "fn_name"}
    verification_info                                                  open-r1: {"language", "test_cases"}
    answer                                                             verl: its ground truth, in the form of APPS

In the form of APPS, a function's inputs and outputs may be JSON text, one argument per line (verl, LiveCodeBench).
`tests` and the last three may be JSON text. A test without a function gives a program's standard input and output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.programs.plain import NotPlain, pack
from posttrain.verify.programs.program import BODY, PYTHON, parses, prompt_code
from posttrain.verify.programs.rewrite import (
    Call,
    Script,
    foreign_imports,
    names_of,
    rewrite_assertion,
    rewrite_check,
    rewrite_script,
)

COLUMNS = (
    "tests",
    "test_list",
    "test_setup_code",
    "test_imports",
    "challenge_test_list",
    "test",
    "entry_point",
    "input_output",
    "verification_info",
    "answer",
)
"""The columns that define the tests."""
_INTEGER = re.compile("0|-?[1-9][0-9]{0,99}")
"""An integer as `json` writes it. Longer ones are no keys in earnest, and Python may refuse to read them."""


@dataclass(frozen=True)
class Stdio:
    """The input that a program reads, and the output that it must write."""

    input: str
    output: str


@dataclass(frozen=True)
class Value:
    """A function's arguments as values, and the value that it has to return."""

    function: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    expected: tuple[Any, ...]
    """The accepted values: APPS wraps some results in a list of one."""
    tuple_ok: bool = False
    """True if the test was written as JSON (APPS), which has no tuples and only text as keys: the result counts as the
    expected one if JSON writes both alike."""


Test = Stdio | Value | Call | Script


@dataclass(frozen=True)
class Suite:
    """The tests that a program has to pass."""

    tests: tuple[Test, ...]
    function: str | None
    """The function that the tests call; None for a program that uses standard input and output."""
    prompt: str = ""
    """Code in the prompt that the completion continues."""


def read_suite(row: Mapping[str, Any], *, bare: bool = True) -> Suite:
    """Read the tests from the columns of a row. DataError for a row without tests and for an unreadable test.

    `bare`: the sandbox has only the standard library, so a test that imports other packages is an error too.
    """
    given = {name: row[name] for name in COLUMNS if row.get(name) is not None and len(str(row[name])) > 0}
    entry_point = _text(given.get("entry_point"), "entry_point")
    prompt = prompt_code(row.get("prompt"), entry_point) if entry_point else ""
    tests: list[Test] = []
    if "tests" in given:
        tests += _cases(_json(given["tests"], "tests"), entry_point, given)
    if "test_list" in given:
        tests += _assertions([*_list(given, "test_list"), *_list(given, "challenge_test_list")], given)
    if "test" in given:
        source = _text(given["test"], "test") or ""
        helpers = prompt if parses(prompt) else prompt + BODY
        tests += rewrite_check(source, entry_point, helpers) if entry_point else rewrite_script(source, None)
    if "input_output" in given:
        tests += _apps(_json(given["input_output"], "input_output"), entry_point)
    if "verification_info" in given:
        info = _json(given["verification_info"], "verification_info")
        if isinstance(info, Mapping) and (info.get("language") or "python") not in PYTHON:
            raise DataError(given=f"tests for programs in {info['language']}", allowed="Python")
        tests += _cases(info.get("test_cases") if isinstance(info, Mapping) else info, entry_point, given)
    if not tests and str(given.get("answer")).lstrip().startswith("{"):  # not a reference solution
        tests += _cases(_json(given["answer"], "answer"), entry_point, given)
    if not tests:
        raise DataError(
            given="a row without tests",
            allowed=f"one of the columns {', '.join(COLUMNS)}",
            fix="Rename the column that holds the tests; docs/code.md shows the forms.",
        )
    _check_values(tests)
    if bare:
        _check_imports(tests)
    names = names_of(test for test in tests if isinstance(test, Call | Script))
    names += tuple(test.function for test in tests if isinstance(test, Value))
    return Suite(tuple(tests), entry_point or (names[0] if names else None), prompt)


def holds_tests(answer: Any) -> bool:
    """Whether the column `answer` holds the tests of its row, as in data for verl, and no answer."""
    try:
        given = _json(answer, "answer")
    except DataError:
        return False
    return isinstance(given, Mapping) and {"inputs", "outputs"} <= given.keys()


def _check_values(tests: Sequence[Test]) -> None:
    """Check that the values can be sent into the sandbox and back, and that at least one test expects something."""
    for test in tests:
        if isinstance(test, Value):
            try:
                pack([list(test.arguments), dict(test.keywords), list(test.expected)])
            except NotPlain as error:
                raise DataError(
                    given=f"a test of {test.function} with {error}", allowed="plain data of at most 300,000 parts"
                ) from None
    silent = [test for test in tests if (isinstance(test, Stdio) and not test.output.strip())]
    silent += [test for test in tests if isinstance(test, Value) and test.expected == (None,)]
    if len(silent) == len(tests):
        raise DataError(
            given="tests that all expect nothing: a program that does nothing would pass them",
            allowed="at least one test with an output",
            fix="Correct or drop these rows. Functions that change their arguments in place must return the result.",
        )


def _check_imports(tests: Sequence[Test]) -> None:
    for test in tests:
        source = f"{test.helpers}\n{test.source}" if isinstance(test, Script) else ""
        source = test.setup if isinstance(test, Call) else source
        if foreign := foreign_imports(source):
            raise DataError(
                given=f"tests that import {foreign[0]}, which the sandbox does not have",
                allowed="the standard library",
                fix="Use a container image that has it: settings: {sandbox: 'container:IMAGE'}.",
            )


def _assertions(items: Sequence[Any], given: Mapping[str, Any]) -> list[Test]:
    imports = given.get("test_imports") or ()
    prelude = imports if isinstance(imports, str) else "\n".join(map(str, imports))
    setup = str(given.get("test_setup_code") or "").replace("\r\n", "\n").strip()
    return [test for item in items for test in rewrite_assertion(_text(item, "a test") or "", setup, prelude)]


def _cases(cases: Any, entry_point: str | None, given: Mapping[str, Any]) -> list[Test]:
    if isinstance(cases, Mapping) and "inputs" in cases:
        return _apps(cases, entry_point)
    if not isinstance(cases, Sequence) or isinstance(cases, str) or not cases:
        raise _unreadable(cases)
    if all(isinstance(case, str) for case in cases):
        return _assertions(cases, given)
    return [_case(case, entry_point) for case in cases]


def _case(case: Any, entry_point: str | None) -> Test:
    """Read {"input", "output"} under the names that datasets use. `type` or `testtype` may state the form."""
    if not isinstance(case, Mapping):
        raise _unreadable(case)
    given = _first(case, "input", "inputs", "args", "stdin")
    expected = _first(case, "output", "outputs", "expected", "expected_output", "stdout")
    metadata = case.get("metadata") or {}
    function = case.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)
    function = function or entry_point
    kind = str(case.get("type") or case.get("testtype") or "").lower()
    if "std" in kind or function is None:
        if isinstance(given, list) and all(isinstance(line, str) for line in given):
            given = "\n".join(given)
        if not isinstance(given, str) or not isinstance(expected, str):
            raise DataError(
                given=f"a test with the input {given!r} and no function to call",
                allowed="texts as input and output of a program, or the name of a function in `entry_point`",
            )
        return Stdio(given, expected)
    if kind == "functional" and isinstance(given, str):
        arguments = tuple(map(_with_integer_keys, _arguments(given)))
        return Value(function, arguments, {}, (_json(expected, "an expected value"),), tuple_ok=True)
    if kind == "function_call":
        return _apps_value(function, given, expected)
    keywords = dict(case.get("kwargs") or {})
    if isinstance(given, Mapping):
        return Value(function, (), {**given, **keywords}, (expected,))
    return Value(function, tuple(given) if isinstance(given, list | tuple) else (given,), keywords, (expected,))


def _first(case: Mapping[str, Any], *names: str) -> Any:
    """The value under the first of the names that has one. A name with null counts only if no other name has a value:
    Parquet and `datasets` give each test the names of all tests."""
    if found := [case[name] for name in names if name in case]:
        return next((value for value in found if value is not None), None)
    raise DataError(given=f"a test without {names[0]}: {str(case)[:80]}", allowed=" or ".join(names))


def _apps(cases: Any, entry_point: str | None) -> list[Test]:
    """Read the two lists of APPS: texts for programs or, with `fn_name`, arguments and results of a function."""
    if not isinstance(cases, Mapping):
        raise _unreadable(cases)
    inputs, outputs = cases.get("inputs"), cases.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise DataError(given="inputs and outputs that do not pair up", allowed="two lists of one length, at least 1")
    function = cases.get("fn_name") or entry_point
    pairs = list(zip(inputs, outputs, strict=True))
    if function is None:
        return [Stdio(_joined(given), _joined(expected)) for given, expected in pairs]
    return [_apps_value(function, given, expected) for given, expected in _from_json(pairs)]


def _from_json(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Read arguments and results from JSON, as verl and LiveCodeBench write them, if all tests of the row are JSON.

    Else they stand for themselves, so that a function of text gets "12" if another test of its row gives it "ab".
    """
    if not all(isinstance(text, str) and text.strip() for pair in pairs for text in pair):
        return pairs
    try:
        return [(_arguments(given), _json(expected, "an expected value")) for given, expected in pairs]
    except DataError:
        return pairs


def _arguments(text: str) -> list[Any]:
    """The arguments in a text: one JSON value per line."""
    return [_json(line, "an argument") for line in text.split("\n") if line.strip()]


def _apps_value(function: str, given: Any, expected: Any) -> Value:
    wrapped = isinstance(expected, list) and len(expected) == 1
    arguments = tuple(map(_with_integer_keys, given if isinstance(given, list) else [given]))
    return Value(function, arguments, {}, (expected, expected[0]) if wrapped else (expected,), tuple_ok=True)


def _with_integer_keys(value: Any) -> Any:
    """A dictionary with integers as keys if JSON may have made text of them; any other value as it is."""
    if not isinstance(value, dict) or not all(isinstance(key, str) and _INTEGER.fullmatch(key) for key in value):
        return value
    return {int(key): _with_integer_keys(item) for key, item in value.items()}


def _joined(lines: Any) -> str:
    if isinstance(lines, list):
        return "\n".join(map(str, lines))
    if not isinstance(lines, str):
        raise _unreadable(lines)
    return lines


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    value = _json(given.get(name) or [], name)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(given=f"{name} is {value!r}", allowed="a list of assertions")
    return list(value)


def _text(value: Any, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise DataError(given=f"{what} is {value!r}", allowed="text")
    return value


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise DataError(given=f"{what} is not JSON: {value[:80]!r}", allowed="a list, or its JSON") from None


def _unreadable(value: Any) -> DataError:
    return DataError(
        given=f"tests that cannot be read: {str(value)[:80]!r}",
        allowed='assertions, [{"input": ..., "output": ...}, ...], or {"inputs": [...], "outputs": [...]}',
        fix="docs/code.md shows the forms.",
    )
