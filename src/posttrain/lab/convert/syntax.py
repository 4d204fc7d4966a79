"""The syntax tree of a Python script: what its names stand for, and the literal values in it. Nothing is run."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from posttrain.lab.convert.records import FORMS, TRL, Given, Unread


@dataclass(frozen=True)
class Change:
    """A change of a name's value after its assignment: `name.key = value`, `name["key"] = value` or `name.method()`."""

    line: int
    key: str | None
    """None if the change cannot be read."""
    value: ast.expr
    """The call of a method is a change without a key whose value is the call."""
    text: str


class Script:
    """The syntax tree of a script, with the values assigned to its names."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.calls = sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda call: call.lineno)
        self.assigned: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self.changed: defaultdict[str, list[Change]] = defaultdict(list)
        self.functions = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.classes = {n.name: n for n in nodes if isinstance(n, ast.ClassDef)}
        self.imported: dict[str, str] = {}
        self.fields = {id(statement) for node in self.classes.values() for statement in node.body}
        for node in nodes:
            self._bind(node)
        self.uncertain = {name for name, values in self.assigned.items() if len(values) > 1}
        self.conditional = {id(n) for node in nodes if _may_not_run(node) for n in ast.walk(node)}
        self.place = {id(n): id(f) for f in nodes if isinstance(f, _FUNCTIONS) for n in ast.walk(f)}  # innermost wins
        self.parameters = {id(n) for node in nodes for n in _reads_of_parameters(node)}
        self.guarded = any(isinstance(node, ast.If) and _is_main(node) for node in tree.body)

    def _bind(self, node: ast.AST) -> None:
        if id(node) in self.fields:  # a field of a class is not a name of the script
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _changes_its_owner(node.value):
            self._call_for_effect(node.value)
        if isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, (ast.Subscript, ast.Attribute)) and isinstance(target.value, ast.Name):
                    self.changed[target.value.id].append(Change(node.lineno, None, target, ast.unparse(node)))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, ast.BinOp(node.target, node.op, node.value, lineno=node.lineno, col_offset=0))
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assign(node.target, node.iter)
            self._assign(node.target, node.iter)  # several values
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call_for_effect(node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.assigned[target.id].append(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            paired = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            parts: Sequence[ast.expr] = value.elts if paired else [value] * len(target.elts)  # type: ignore[attr-defined]
            for one, part in zip(target.elts, parts, strict=True):
                self._assign(one, part if paired else ast.Starred(part, lineno=target.lineno, col_offset=0))
        else:
            self._change(target, value)

    def _change(self, target: ast.expr, value: ast.expr) -> None:
        """Record `name.key = value` and `name["key"] = value`. Changes of parts of the value have no key."""
        key: Any = None
        if isinstance(target, ast.Attribute):
            key, owner = target.attr, target.value
        elif isinstance(target, ast.Subscript):
            key, owner = target.slice.value if isinstance(target.slice, ast.Constant) else None, target.value
        else:
            return
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            key, owner = None, owner.value
        if isinstance(owner, ast.Name):
            text = f"{ast.unparse(target)} = {ast.unparse(value)}"
            self.changed[owner.id].append(Change(target.lineno, key if isinstance(key, str) else None, value, text))

    def _call_for_effect(self, call: ast.Call) -> None:
        """Record `name.update(...)` and `setattr(name, ...)` as a change."""
        set_by_name = isinstance(call.func, ast.Name) and call.func.id == "setattr" and call.args
        owner = call.args[0] if set_by_name else call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ast.Name):
            self.changed[owner.id].append(Change(call.lineno, None, call, ast.unparse(call)))

    def called(self, call: ast.Call) -> str:
        """Return the last part of the called function's name. Import aliases are resolved."""
        return self._last(call.func)

    def _last(self, node: ast.expr) -> str:
        name = ast.unparse(node)
        return self.imported.get(name, name).rpartition(".")[2]

    def bases(self, name: str) -> Iterator[str]:
        """Yield the name of a class, then the first base of each class of the script."""
        seen: set[str] = set()
        while name not in seen:
            yield name
            seen.add(name)
            told = self.classes.get(name)
            name = self._last(told.bases[0]) if told and told.bases else name

    def form_of(self, call: ast.Call) -> str | None:
        """Return the form of forms.yaml that a call creates. A form that `known_by` recognises takes precedence."""
        name, given = self.called(call), {keyword.arg for keyword in call.keywords}
        older = (
            form for form, told in FORMS[TRL].items() if form.startswith(f"{name} ") and given & {*told["known_by"]}
        )
        return next(older, name if name in FORMS[TRL] else None)

    def resolved(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name stands for; the name itself if it has none, or several."""
        seen: set[str] = set()
        while isinstance(node, ast.Name) and self._is_known(node) and node.id not in seen:
            seen.add(node.id)
            node = self.assigned[node.id][0]
        return node

    def _is_known(self, name: ast.Name) -> bool:
        return name.id in self.assigned and name.id not in self.uncertain and id(name) not in self.parameters

    def names_of(self, node: ast.expr) -> list[str]:
        """Return the names that are assigned this expression."""
        return [name for name, values in self.assigned.items() if any(value is node for value in values)]

    def changes_of(self, node: ast.expr) -> list[Change]:
        return [change for name in self.names_of(node) for change in self.changed[name]]

    def arguments(self, call: ast.Call) -> dict[str, Given]:
        """Return the keyword arguments of a call, including `**` of a dict, with what the script changes afterwards."""
        given: dict[str, Given] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value, until=call.lineno)
            if keyword.arg is not None:
                given[keyword.arg] = Given(value, keyword.value.lineno)
            elif isinstance(value, dict):
                given |= {str(name): Given(inner, keyword.value.lineno) for name, inner in value.items()}
        return given | self._changed(call)

    def _changed(self, node: ast.expr, until: float = math.inf) -> dict[str, Given]:
        """Return the settings that the script assigns after it created them, up to a line. Whether another function is
        called is not known."""
        unsure = any(name in self.uncertain for name in self.names_of(node))
        given: dict[str, Given] = {}
        for change in self.changes_of(node):
            if change.key is not None and change.line <= until:
                sure = not unsure and change.key not in given and id(change.value) not in self.conditional
                sure = sure and self.place.get(id(change.value)) == self.place.get(id(node))
                value = self.value(change.value) if sure else Unread(ast.unparse(change.value))
                given[change.key] = Given(value, change.line)
        return given

    def value(self, node: ast.expr, seen: frozenset[str] = frozenset(), until: float = math.inf) -> Any:
        """Return the literal value of an expression, following assigned names; otherwise its source as Unread. Of a
        dict, only changes up to the line `until` count."""
        if isinstance(node, ast.Name):
            known = self._is_known(node) and node.id not in seen
            known = known and not (
                self.changed[node.id] and isinstance(self.assigned[node.id][0], ast.Name)
            )  # an alias
            return self.value(self.assigned[node.id][0], seen | {node.id}, until) if known else Unread(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # config.model_name
            made = self.resolved(node.value)
            if isinstance(made, ast.Call) and self.form_of(made):
                told = (keyword.value for keyword in made.keywords if keyword.arg == node.attr)
                return next((self.value(value, seen) for value in told), Unread(ast.unparse(node)))
            if node.value.id == "torch":
                return node.attr
        if isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and self.called(node) == "dict" and not node.args):
            return self._dict(node, seen, until)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.FloorDiv)):
            left, right = self.value(node.left, seen), self.value(node.right, seen)
            if isinstance(left, int) and isinstance(right, int):
                made = {ast.Mult: left * right, ast.Add: left + right, ast.FloorDiv: left // (right or 1)}
                return made[type(node.op)]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Unread(ast.unparse(node))

    def _dict(self, node: ast.Dict | ast.Call, seen: frozenset[str], until: float) -> Any:
        """Return the dict of `{...}` or `dict(...)`, with `**` and changes; Unread if one of these cannot be read."""
        if any(change.key is None and change.line <= until for change in self.changes_of(node)):
            return Unread(ast.unparse(node))
        if isinstance(node, ast.Dict):
            pairs = [(key and self.value(key), inner) for key, inner in zip(node.keys, node.values, strict=True)]
        else:
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        made: dict[Any, Any] = {}
        for key, inner in pairs:
            value = self.value(inner, seen, until if key is not None else min(until, inner.lineno))
            if key is None and not isinstance(value, dict):
                return Unread(ast.unparse(node))
            made |= value if key is None else {key: value}
        return made | {name: given.value for name, given in self._changed(node, until).items()}

    def behind(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[ast.Call | ast.Subscript]:
        """Yield the calls and keys that an expression applies to a value, last one first, and through all its names."""
        if isinstance(node, ast.Name) and node.id not in seen:
            for value in reversed(self.assigned.get(node.id, [])):
                yield from self.behind(value, seen | {node.id})
        elif isinstance(node, ast.Subscript):
            yield node
            yield from self.behind(node.value, seen)
        elif isinstance(node, ast.Call):
            yield node
            if isinstance(node.func, ast.Attribute):
                yield from self.behind(node.func.value, seen)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _changes_its_owner(value: ast.expr | None) -> TypeGuard[ast.Call]:
    """Is this a call such as `options.pop("beta")`, whose result is kept?"""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    return value.func.attr in ("pop", "popitem", "update", "setdefault", "clear")


def _is_main(node: ast.If) -> bool:
    return "__name__" in ast.unparse(node.test)


def _may_not_run(node: ast.AST) -> bool:
    """Is this a branch or loop, whose statements run only under a condition?"""
    if isinstance(node, ast.If):
        return not _is_main(node)
    return isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.Match, ast.ExceptHandler))


def _reads_of_parameters(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names in a function that stand for its parameters. Their values depend on the call."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        names = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        for inner in (n for statement in node.body for n in ast.walk(statement)):
            if isinstance(inner, ast.Name) and inner.id in names:
                yield inner
