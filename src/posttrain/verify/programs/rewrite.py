"""Rewrite assertions of a dataset as calls whose results are compared outside of the sandbox.

`assert f(3) == [1, 2]` becomes the call `f(3)` and the expected value `[1, 2]`. Only the call goes into the sandbox.
An assertion of another form stays a script. It runs in a separate sandbox and reaches the program through a stub
(`examine.py`).

This file reads only text of the dataset. The tests alone decide what a name means, and never the program, which could
otherwise replace a `sorted` or a `set` that a test uses.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.errors import DataError
from posttrain.verify.programs.stubs import check_stubs

BUILTIN_NAMES = frozenset(dir(builtins))
PROGRAM_MODULES = frozenset({"solution", "main"})
"""Module names that tests use for the file of the program."""
_METHOD = re.compile(r"Solution\(\)\.\w+")
Relation = Literal["equal", "unequal", "is", "is not", "true", "false"]


@dataclass(frozen=True)
class Call:
    """One call and the required result."""

    expression: str
    """An expression that the program's process evaluates in the program's namespace: `f([1, 2], k=3)`."""
    relation: Relation
    expected: Any = None
    setup: str = ""
    """Statements before the call, in the program's process. They may use its classes."""


@dataclass(frozen=True)
class Script:
    """Assertions that run in a separate process that the program cannot reach."""

    source: str
    functions: tuple[tuple[str, str], ...]
    """Names in the script for functions of the program, and their names in the program. Every call is a message."""
    helpers: str = ""
    """Code of the dataset that the script may use, such as the prompt of HumanEval."""


def rewrite_assertion(test: str, setup: str = "", prelude: str = "") -> list[Call | Script]:
    """The tests in one element of a `test_list`. DataError if it is not Python or asserts nothing about the program.

    `setup` runs before it and may use the program's classes. `prelude` contains imports.
    """
    tree = _parse(test)
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    if not any(not isinstance(node.test, ast.Tuple) for node in asserts):  # a tuple is always true
        raise DataError(given=f"a test without an assert: {test[:80]!r}", allowed="for example `assert f(1) == 2`")
    functions = _functions(tree, defined=_bound(_parse(prelude)) | _bound(_parse(setup)))
    if not functions:
        raise DataError(
            given=f"a test that calls nothing of the program: {test[:80]!r}", allowed="for example `assert f(1) == 2`"
        )
    calls = [_as_call(node, functions, f"{prelude}\n{setup}".strip()) for node in tree.body]
    whole = [call for call in calls if call is not None]
    if len(whole) == len(calls):
        return list(whole)
    check_stubs(tree, functions)
    return [Script("\n".join(part for part in (prelude, setup, test) if part), _as_they_are(functions))]


def rewrite_check(test: str, entry_point: str, helpers: str = "") -> list[Call | Script]:
    """The tests in a `check(candidate)` function, as in HumanEval. They become calls if each statement is a call."""
    tree = _parse(test)
    check = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if check is None:
        return rewrite_script(test, entry_point, helpers)
    if len(check.args.args) != 1:
        raise DataError(given="a test whose check takes another number of arguments", allowed="def check(candidate)")
    if not _asserts(tree):
        raise _asserts_nothing(test)
    candidate = check.args.args[0].arg
    body = [node for node in check.body if not _says_nothing(node)]
    calls = [_as_call(_renamed(node, candidate, entry_point), {entry_point}, "") for node in body]
    whole = [call for call in calls if call is not None]
    if whole and len(whole) == len(calls):
        return list(whole)
    check_stubs(ast.Module([node for node in tree.body if node is not check] + check.body, []), {candidate})
    name = entry_point if entry_point.isidentifier() else "candidate_"
    return [Script(f"{test}\n\ncheck({name})\n", ((name, entry_point),), helpers)]


def rewrite_script(test: str, entry_point: str | None, helpers: str = "") -> list[Call | Script]:
    """A script of assertions, with or without its own functions.

    Names that it imports from a module `solution` are functions of the program. Functions called `test_...` are its
    tests (KodCode).
    """
    tree = _parse(test)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in PROGRAM_MODULES]
    names = [alias for node in imported for alias in node.names if alias.name != "*"]
    functions = {alias.asname or alias.name: alias.name for alias in names}
    functions = {entry_point: entry_point} if entry_point else functions
    functions = functions or {name: name for name in _functions(tree, defined=set())}
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    if not functions or not _asserts(tree) or not (tests or any(map(_runs, tree.body))):
        raise _asserts_nothing(test)
    _check_without_fixtures(tests)
    check_stubs(tree, set(functions))
    tree.body = [node for node in tree.body if node not in imported]
    calls = [f"{node.name}()" for node in tests]
    source = test if not imported and not tests else "\n".join([ast.unparse(tree), *calls])
    return [Script(source, tuple(sorted(functions.items())), helpers)]


def _runs(node: ast.stmt) -> bool:
    """Whether a statement of a script does more than define a name."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return not isinstance(node, definitions) and not _says_nothing(node)


def _check_without_fixtures(tests: list[ast.FunctionDef]) -> None:
    for node in tests:
        if len(node.args.posonlyargs + node.args.args) > len(node.args.defaults) or None in node.args.kw_defaults:
            raise DataError(
                given=f"a test function with parameters: {node.name}({ast.unparse(node.args)})",
                allowed="test functions without parameters; pytest's fixtures and parametrize are not run",
                fix="Write the cases into the function, or drop these rows.",
            )


def _asserts(tree: ast.Module) -> bool:
    """Whether a statement can make the script fail."""
    return any(isinstance(node, ast.Assert | ast.Raise) and not _says_nothing(node) for node in ast.walk(tree))


def _asserts_nothing(test: str) -> DataError:
    return DataError(
        given=f"a test that asserts nothing of the program: {test[:80]!r}",
        allowed="assertions, or a function `check(candidate)`",
    )


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source.replace("\r\n", "\n"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DataError(given=f"a test that is not Python ({error}): {source[:80]!r}") from None


def _as_call(node: ast.stmt, functions: set[str], setup: str) -> Call | None:
    """The statement as one call whose result is compared with a literal; None for any other statement."""
    if not isinstance(node, ast.Assert):
        return None
    test = node.test
    if _is_call(test, functions):
        return Call(ast.unparse(test), "true", setup=setup)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_call(test.operand, functions):
        return Call(ast.unparse(test.operand), "false", setup=setup)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not _is_call(test.left, functions):
        return None
    relation: Relation | None = _RELATIONS.get(type(test.ops[0]))
    try:
        expected = ast.literal_eval(test.comparators[0])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if relation in ("is", "is not") and not (expected is None or isinstance(expected, bool)):
        return None
    return Call(ast.unparse(test.left), relation, expected, setup) if relation is not None else None


_RELATIONS: dict[type[ast.cmpop], Relation] = {
    ast.Eq: "equal",
    ast.NotEq: "unequal",
    ast.Is: "is",
    ast.IsNot: "is not",
}


def _is_call(node: ast.expr, functions: set[str]) -> bool:
    """Whether the node calls one of these functions or a method of `Solution()`."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in functions or ("Solution" in functions and _METHOD.fullmatch(called) is not None)


def _functions(tree: ast.Module, defined: set[str]) -> set[str]:
    """The functions that the program has to define: those that the test calls and that are neither built in nor bound.

    MBPP asks for functions with names of built-in ones (`sum`, `reversed`). If a test calls nothing else, the outermost
    call on the left is meant.
    """
    defined = defined | _bound(tree)
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    functions = {name for name in called if name not in BUILTIN_NAMES and name not in defined}
    return functions or set(_outermost(tree))


def _outermost(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assert):
            test = node.test.left if isinstance(node.test, ast.Compare) else node.test
            if isinstance(test, ast.Call) and isinstance(test.func, ast.Name):
                yield test.func.id


def _bound(tree: ast.Module) -> set[str]:
    """Every name that is bound anywhere in a script."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def implied_imports(source: str) -> list[str]:
    """Standard library modules that a script uses by attribute without importing them. MBPP relies on the program's
    `import sys`."""
    tree = _parse(source)
    used = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return sorted((used & sys.stdlib_module_names) - _bound(tree))


def foreign_imports(source: str) -> list[str]:
    """Modules that a script imports and that are not in the standard library."""
    found: set[str] = set()
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return sorted(found - sys.stdlib_module_names)


def _says_nothing(node: ast.stmt) -> bool:
    """Whether a statement has no effect: a docstring, a name alone, `pass` or `assert True`, as in HumanEval. A tuple,
    as in `assert (f(1) == 2, "no")`, is always true."""
    if isinstance(node, ast.Assert):
        always = isinstance(node.test, ast.Tuple) and len(node.test.elts) > 0
        return always or (isinstance(node.test, ast.Constant) and node.test.value is True)
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(node, ast.Pass) or isinstance(value, ast.Constant | ast.Name)


def _renamed(node: ast.stmt, old: str, new: str) -> ast.stmt:
    """A copy of the statement with `candidate` replaced by the function itself."""
    replacement = ast.parse(new, mode="eval").body

    class Rename(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return replacement if name.id == old else name

    return Rename().visit(copy.deepcopy(node))


def _as_they_are(functions: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in sorted(functions))


def names_of(tests: Iterable[Call | Script]) -> tuple[str, ...]:
    """The functions that the tests call."""
    names: dict[str, None] = {}
    for test in tests:
        calls = [call for _, call in test.functions] if isinstance(test, Script) else [test.expression]
        names |= dict.fromkeys(call.partition("(")[0] for call in calls)
    return tuple(names)
