"""Mutants: programs that differ from a right one in one place. The functions only rewrite source text; nothing runs."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from typing import Any

UNHEARD_OF = "no program returns this"
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def mutants(program: str, most: int = 20) -> list[str]:
    """At most `most` programs with one change each, spread over the program. Empty if it cannot be parsed.

    >>> mutants("def f(a):\\n    return a + 1", 2)
    ['def f(a):\\n    return None', 'def f(a):\\n    return a - 1']
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    places = [(number, change) for number, node in enumerate(ast.walk(tree)) for change in range(_changes(node))]
    step = max(len(places) / most, 1.0)
    chosen = [places[int(step * number)] for number in range(min(most, len(places)))]
    same = ast.unparse(tree)
    made = dict.fromkeys(_mutated(tree, number, change) for number, change in chosen)
    return [program for program in made if program != same]


def impossible(columns: Mapping[str, Any]) -> dict[str, Any] | None:
    """The test columns, changed so that the first test expects a value that no program returns. None if that is hard.

    >>> impossible({"test_list": ["assert f(1) == 2"]})
    {'test_list': ["assert f(1) == 'no program returns this'"]}
    """
    assertions, tests = columns.get("test_list"), columns.get("tests")
    if isinstance(assertions, list) and assertions and (changed := _impossible(str(assertions[0]))):
        return {"test_list": [changed, *assertions[1:]]}
    if isinstance(tests, list) and tests and isinstance(tests[0], dict) and "output" in tests[0]:
        return {"tests": [tests[0] | {"output": UNHEARD_OF}, *tests[1:]]}
    return None


def _impossible(assertion: str) -> str | None:
    try:
        tree = ast.parse(assertion.strip())
    except SyntaxError:
        return None
    match tree.body:
        case [ast.Assert(test=ast.Compare(ops=[ast.Eq()]) as compared)]:
            compared.comparators = [ast.Constant(value=UNHEARD_OF)]
            return ast.unparse(tree)
    return None


def _changes(node: ast.AST) -> int:
    """Number of possible changes to a node."""
    return sum(1 for _ in _edits(node))


def _mutated(tree: ast.Module, number: int, change: int) -> str:
    changed = copy.deepcopy(tree)
    node = next(node for place, node in enumerate(ast.walk(changed)) if place == number)
    list(_edits(node))[change]()
    return ast.unparse(ast.fix_missing_locations(changed))


def _edits(node: ast.AST) -> Iterator[_Edit]:
    """The possible changes to a node. Calling one makes the change."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPPED:
        yield _Edit(node, "op", _SWAPPED[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        yield _Edit(node, "ops", [_SWAPPED[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _Edit(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield _Edit(node, "value", node.value + 1)
    elif isinstance(node, ast.If | ast.While):
        yield _Edit(node, "test", ast.UnaryOp(op=ast.Not(), operand=node.test))
    elif isinstance(node, ast.Return) and node.value is not None:
        yield _Edit(node, "value", ast.Constant(value=None))


class _Edit:
    """One attribute of a node and its new value."""

    def __init__(self, node: ast.AST, name: str, value: object) -> None:
        self._node, self._name, self._value = node, name, value

    def __call__(self) -> None:
        setattr(self._node, self._name, self._value)
