"""Find the tests that no program can pass, because a script reaches the program only through calls with plain data.

In a script, a name of the program is a stub (`driver.py`): a function that sends its arguments to the program and
returns a copy of the result. So a constant or an exception of the program, a function as an argument, and a method of
an object that the program returns do not work there, whatever the program is.

Only what certainly fails is refused: a result may have any attribute that some plain value has. What need not run, such
as a branch, a lambda or a function that only a `try` calls, and what may fail without failing the test, in `try` and
`with`, is not judged.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from types import FunctionType

from posttrain.errors import DataError
from posttrain.verify.programs.plain import LAZY

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range)
_ATTRIBUTES = frozenset(name for kind in (*_PLAIN, *LAZY) for name in dir(kind))
"""The attributes that some plain value has."""
_TAKE_ANYTHING = frozenset(
    (
        *("map", "filter", "callable", "iter", "print", "isinstance", "hasattr", "getattr", "setattr", "type", "repr"),
        *("str", "id", "bool", "hash", "dir", "vars", "format"),
    )
)
"""Built-in functions whose first argument may be a function."""
_TAKE_IT_LATER = frozenset(("print", "iter", "getattr", "setattr", "next"))
"""Built-in functions whose later arguments may be functions."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def check_stubs(tree: ast.Module, stubs: set[str]) -> None:
    """DataError if a script uses names of the program in a way that no program can pass."""
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    stubs = stubs - bound  # a name that the script binds may mean something else
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)} | stubs
    functions = (functions | {name for name in dir(builtins) if callable(getattr(builtins, name))}) - bound
    reached = _reached(tree)
    for node in reached:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child.id in stubs and not _as_function(child, node):
                raise _refused(f"{child.id} other than by calling it: {_shown(node)}")
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and _is_unequal(node.test, stubs):
            name = next(one.id for one in _sides(node.test) if isinstance(one, ast.Name) and one.id in stubs)
            raise _refused(f"{name} other than by calling it: {_shown(node.test)}")
        if isinstance(node, ast.Call) and (stub := _called(node, stubs)):
            _check_arguments(node, stub, functions)
    for scope in (tree, *(node for node in nodes if isinstance(node, ast.FunctionDef))):
        _check_results(list(_within(scope)), stubs, set(reached))


def _reached(tree: ast.Module) -> list[ast.AST]:
    """The nodes that certainly run and whose failure fails the test: of the script, its tests, and what these call."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = list(_certain(tree))
    runs = {node for node in functions if node.name.startswith("test")}
    while runs:
        functions = [node for node in functions if node not in runs]
        found += [
            node for function in runs for statement in function.body for node in (statement, *_certain(statement))
        ]
        called = {node.func.id for node in found if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        runs = {node for node in functions if node.name in called}
    return found


def _certain(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node, without what need not run and what may fail without failing the test."""
    skipped = _skipped(node)
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield child
            yield from _certain(child)


def _skipped(node: ast.AST) -> list[ast.AST]:
    """The children of a node that need not run, or whose failure may be caught."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.With() | ast.AsyncWith():
            return [*node.body]
        case ast.Lambda():
            return [node.body]
        case ast.Try(handlers=[_, *others]) | ast.TryStar(handlers=[_, *others]):
            certain = not others and _fails(node.body[-1])
            return [*node.body, *node.orelse, *([] if certain else node.handlers)]
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return [*node.orelse]
        case ast.If(test=ast.Constant(value=value)):
            return [*(node.orelse if value else node.body)]
        case ast.If():
            return [*node.body, *node.orelse]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.While():
            return [*node.body, *node.orelse]
        case ast.BoolOp():
            return [*node.values[1:]]
        case ast.Assert(msg=ast.expr() as message):
            return [message]
    return []


def _fails(statement: ast.stmt) -> bool:
    """Whether a statement always raises: `raise ...`, `assert False`."""
    match statement:
        case ast.Raise() | ast.Assert(test=ast.Constant(value=False)):
            return True
    return False


def _as_function(name: ast.Name, parent: ast.AST) -> bool:
    """Whether a function may stand in this place: `map(f, cases)` and `g = f` work, and `f == 10` does not."""
    match parent:
        case ast.Call(func=ast.Name(id=called), args=[*first]) if name in first and hasattr(builtins, called):
            return called in (_TAKE_ANYTHING if name is first[0] else _TAKE_IT_LATER)
        case ast.Compare(ops=[op]):
            return isinstance(op, _EQUALITY) or (isinstance(op, ast.In | ast.NotIn) and name is parent.left)
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Attribute(attr=attribute):
            return isinstance(parent.ctx, ast.Store) or hasattr(FunctionType, attribute)
        case ast.Subscript(value=value) | ast.For(iter=value) | ast.comprehension(iter=value):
            return value is not name
        case ast.FunctionDef() | ast.ClassDef():
            return name not in (parent.decorator_list if isinstance(parent, ast.FunctionDef) else parent.bases)
    return not isinstance(parent, _NO_PLACE)


_NO_PLACE = (
    *(ast.AugAssign, ast.BinOp, ast.Compare, ast.ExceptHandler, ast.Raise, ast.Starred),
    *(ast.UnaryOp, ast.withitem, ast.YieldFrom),
)
"""Parts of a program in which a function fails."""
_EQUALITY = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
_DATA = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.BinOp, ast.UnaryOp)
"""Expressions whose value is no function."""


def _is_unequal(compared: ast.Compare, stubs: set[str]) -> bool:
    """Whether a comparison says that a function of the program equals data: `LIMIT == 10`, `f is None`."""
    if not all(isinstance(op, ast.Eq | ast.Is) for op in compared.ops):
        return False
    sides = _sides(compared)
    named = any(isinstance(side, ast.Name) and side.id in stubs for side in sides)
    return named and any(isinstance(side, _DATA) or _called(side, stubs) for side in sides)


def _sides(compared: ast.Compare) -> list[ast.expr]:
    return [compared.left, *compared.comparators]


def _check_arguments(call: ast.Call, name: str, functions: set[str]) -> None:
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for part in _parts(argument):
            if isinstance(part, ast.Lambda) or (isinstance(part, ast.Name) and part.id in functions):
                raise _refused(f"a function as an argument of {name}: {_shown(call)}")


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The values in an argument that is written as a list, a tuple, a set or a dictionary; else the argument."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        for item in node.elts:
            yield from _parts(item)
    elif isinstance(node, ast.Dict):
        for item in node.values:
            yield from _parts(item)
    elif isinstance(node, ast.Starred):
        yield from _parts(node.value)
    else:
        yield node


def _check_results(nodes: list[ast.AST], stubs: set[str], reached: set[ast.AST]) -> None:
    """Check the attributes of results in one scope: of a call, and of a name that is bound to nothing but results."""
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    results: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and (stub := _called(node.value, stubs)):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    results.setdefault(target.id, []).append(stub)
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node.attr in _ATTRIBUTES or node not in reached:
            continue
        stub, of = _called(node.value, stubs), node.value
        if not stub and isinstance(of, ast.Name) and stored.count(of.id) == len(results.get(of.id, ())) > 0:
            stub = results[of.id][0]
        if stub:
            raise _refused(f".{node.attr} of what {stub} returns, which plain data does not have")


def _called(node: ast.expr, stubs: set[str]) -> str:
    """The name of the program that an expression calls; empty if it calls none."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.id if isinstance(called, ast.Name) and called.id in stubs else ""


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _within(child)


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 80 else text[:77] + "..."


def _refused(what: str) -> DataError:
    return DataError(
        given=f"a test that uses {what}",
        allowed="calls of the program's functions with plain data, and their results as plain data: a script reaches "
        "the program only like this",
        fix="Test classes, constants and functions as arguments through a function that the program has to define, or "
        "drop these rows.",
    )
