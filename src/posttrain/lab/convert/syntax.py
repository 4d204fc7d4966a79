"""The syntax tree of a Python script: what its names stand for, and the literal values in it. Nothing is run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from posttrain.lab.convert.records import FORMS, TRL, Given, Unread


@dataclass(frozen=True)
class Change:
    """A change of a name's value after its assignment: `name.key = value`, `name["key"] = value`, `name.method()`, or
    `patch(name)` with a function of the script."""

    node: ast.expr
    """The place of the change in the script."""
    key: str | None
    """None if the change cannot be read."""
    value: ast.expr
    """The call of a method is a change without a key whose value is the call."""
    text: str

    @property
    def line(self) -> int:
        return self.node.lineno


class Script:
    """The syntax tree of a script, with the values assigned to its names."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.calls = sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda call: call.lineno)
        self.assigned: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self.changed: defaultdict[str, list[Change]] = defaultdict(list)
        self.functions = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.classes = {n.name: n for n in nodes if isinstance(n, ast.ClassDef)}
        self.callable = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.imported: dict[str, str] = {}
        self.fields = {id(statement) for node in self.classes.values() for statement in node.body}
        for node in nodes:
            self._bind(node)
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.own = (stored - {*self.assigned}).union(_REACHES_OWN, *map(_names_bound, nodes))
        self.uncertain = {name for name, values in self.assigned.items() if len(values) > 1}
        self.conditional = {id(n) for node in nodes if _may_not_run(node) for n in ast.walk(node)}
        self.place = {id(n): id(f) for f in nodes if isinstance(f, _FUNCTIONS) for n in ast.walk(f)}  # innermost wins
        self.parameters = {id(n) for node in nodes for n in _reads_of_parameters(node)}
        self.guarded = any(isinstance(node, ast.If) and _is_main(node) for node in tree.body)
        for call in self.calls:
            if self._is_own(call.func):
                for given in (*call.args, *(keyword.value for keyword in call.keywords)):
                    self._pass(given, call)

    def _bind(self, node: ast.AST) -> None:
        if id(node) in self.fields:  # a field of a class is not a name of the script
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _changes_its_owner(node.value):
            self._call_for_effect(node.value)
        if isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, (ast.Subscript, ast.Attribute)):
                    self._change_unread(target, target)
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
        elif isinstance(node, ast.withitem) and node.optional_vars:
            self._assign(node.optional_vars, node.context_expr)
            self._assign(node.optional_vars, node.context_expr)  # what it gives may be another object
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
        text = f"{ast.unparse(target)} = {ast.unparse(value)}"
        name = _owner(owner)
        if isinstance(name, ast.Name):
            known = key if isinstance(key, str) and name is owner else None
            self.changed[name.id].append(Change(target, known, value, text))

    def _call_for_effect(self, call: ast.Call) -> None:
        """Record `name.update(...)` and `setattr(name, ...)` as a change."""
        if isinstance(call.func, ast.Attribute):
            self._change_unread(call.func.value, call)
        if call.args and ast.unparse(call.func).endswith(("setattr", "__setattr__")):
            self._change_unread(call.args[0], call)

    def _change_unread(self, owner: ast.expr, node: ast.expr) -> None:
        name = _owner(owner)
        if isinstance(name, ast.Name):
            self.changed[name.id].append(Change(node, None, node, ast.unparse(node)))

    def _is_own(self, called: ast.expr) -> bool:
        """May this be a function of the script, or a method of one of its classes?"""
        called = self.resolved(called)
        if isinstance(called, ast.Name):
            return called.id in self.callable
        return isinstance(called, ast.Attribute) and called.attr in self.callable and self._may_be_own(called.value)

    def _may_be_own(self, node: ast.expr) -> bool:
        """Does an expression, or a value behind its names, have a name that may stand for an object of the script?"""
        left, seen = [node], set[str]()
        while left:
            names = {n.id for n in ast.walk(left.pop()) if isinstance(n, ast.Name)} - seen
            if names & self.own:
                return True
            seen |= names
            for name in names:
                left += [*self.assigned.get(name, ()), *(change.value for change in self.changed.get(name, ()))]
        return False

    def _pass(self, given: ast.expr, call: ast.Call) -> None:
        """Record what a function that gets this argument may change: the object, or a part that is no plain value."""
        part = given
        while isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(
            part.value, (ast.Attribute, ast.Subscript)
        ):
            part = part.value
        if not isinstance(part, (ast.Attribute, ast.Subscript)) or not isinstance(part.value, ast.Name):
            return self._change_unread(given, call)
        values = self._fields(self.resolved(part.value))
        key = part.attr if isinstance(part, ast.Attribute) else getattr(part.slice, "value", None)
        if not isinstance(values, dict) or not isinstance(key, str):
            key = None
        told = [values.get(key)] if key else values.values() if isinstance(values, dict) else [values]
        if not all(isinstance(value, (str, int, float, bytes, type(None))) for value in told):
            self.changed[part.value.id].append(Change(call, key, call, ast.unparse(call)))
        return None

    def _fields(self, made: ast.expr) -> Any:
        """Return the settings of a config or dict, by name. Those of another expression are Unread."""
        if isinstance(made, ast.Call) and self.form_of(made) and not made.args:
            return {name: given.value for name, given in self.arguments(made).items()}
        return self.value(made)

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
        called = self.called(call)
        name = next((base for base in self.bases(called) if base in FORMS[TRL]), called)
        given = {keyword.arg for keyword in call.keywords}
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
        """Return the changes of an expression under its names. Those under a second name, `b = a`, are not read."""
        names = {*self.names_of(node)}
        changes = [change for name in sorted(names) for change in self.changed[name]]
        known = {*names}
        while more := {alias for alias in self.assigned if alias not in known and self._is_one_of(alias, known)}:
            changes += [replace(change, key=None) for alias in sorted(more) for change in self.changed[alias]]
            known |= more
        return sorted(changes, key=lambda change: change.line)

    def _is_one_of(self, alias: str, names: set[str]) -> bool:
        """Is a name assigned one of these names, or a list of them?"""
        parts = [part for value in self.assigned[alias] for part in getattr(value, "elts", [value])]
        return any(isinstance(part, ast.Name) and part.id in names for part in parts)

    def arguments(self, call: ast.Call) -> dict[str, Given]:
        """Return the keyword arguments of a call, including `**` of a dict, with what the script changes afterwards."""
        given: dict[str, Given] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value, reader=call)
            if keyword.arg is not None:
                given[keyword.arg] = Given(value, keyword.value.lineno)
            elif isinstance(value, dict):
                given |= {str(name): Given(inner, keyword.value.lineno) for name, inner in value.items()}
        return given | self._changed(call, None, frozenset())

    def _changed(self, node: ast.expr, reader: ast.expr | None, seen: frozenset[str]) -> dict[str, Given]:
        """Return the settings that the script assigns between the creation of an object and the call that reads it. A
        value is certain if all three are lines of the same function that always run."""
        straight = not any(name in self.uncertain for name in self.names_of(node)) and self._together(node, reader)
        given: dict[str, Given] = {}
        for change in self.changes_of(node):
            if change.key is not None and not self._is_later(change, node, reader):
                sure = straight and change.key not in given and self._always_with(change, node)
                value = self.value(change.value, seen) if sure else Unread(ast.unparse(change.value))
                given[change.key] = Given(value, change.line)
        return given

    def _together(self, one: ast.expr, other: ast.expr | None) -> bool:
        """Are two expressions in the same function, or both outside of functions?"""
        return other is None or self.place.get(id(one)) == self.place.get(id(other))

    def _always_with(self, change: Change, node: ast.expr) -> bool:
        return self._together(change.node, node) and id(change.node) not in self.conditional

    def _is_later(self, change: Change, node: ast.expr, reader: ast.expr | None) -> bool:
        """Does a change certainly come after the call that reads the object?"""
        if reader is None or not self._together(node, reader):
            return False
        return self._always_with(change, node) and change.line > reader.lineno

    def value(self, node: ast.expr, seen: frozenset[str] = frozenset(), reader: ast.expr | None = None) -> Any:
        """Return the literal value of an expression, following assigned names; otherwise its source as Unread. Changes
        of a dict after the expression `reader`, which reads it, do not count."""
        if isinstance(node, ast.Name):
            known = self._is_known(node) and node.id not in seen
            return self.value(self.assigned[node.id][0], seen | {node.id}, reader) if known else Unread(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # config.model_name
            made, text = self.resolved(node.value), ast.unparse(node)
            if isinstance(made, ast.Call) and self.form_of(made):
                told = (keyword.value for keyword in made.keywords if keyword.arg == node.attr)
                value = None if text in seen or self.changes_of(made) else next(told, None)
                return Unread(text) if value is None else self.value(value, seen | {text})
            if node.value.id == "torch":
                return node.attr
        if isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and self.called(node) == "dict" and not node.args):
            return self._dict(node, seen, reader)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.FloorDiv)):
            left, right = self.value(node.left, seen), self.value(node.right, seen)
            if isinstance(left, int) and isinstance(right, int):
                made = {ast.Mult: left * right, ast.Add: left + right, ast.FloorDiv: left // (right or 1)}
                return made[type(node.op)]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Unread(ast.unparse(node))

    def _dict(self, node: ast.Dict | ast.Call, seen: frozenset[str], reader: ast.expr | None) -> Any:
        """Return the dict of `{...}` or `dict(...)`, with `**` and changes; Unread if one of these cannot be read."""
        if any(change.key is None and not self._is_later(change, node, reader) for change in self.changes_of(node)):
            return Unread(ast.unparse(node))
        if isinstance(node, ast.Dict):
            pairs = [(key and self.value(key, seen), inner) for key, inner in zip(node.keys, node.values, strict=True)]
        else:
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        made: dict[Any, Any] = {}
        for key, inner in pairs:
            value = self.value(inner, seen, reader if key is not None else inner)  # `**` copies
            if key is None and not isinstance(value, dict):
                return Unread(ast.unparse(node))
            made |= value if key is None else {key: value}
        return made | {name: given.value for name, given in self._changed(node, reader, seen).items()}

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
_REACHES_OWN = {"super", "globals", "locals", "vars", "eval", "__class__"}
"""Names of Python that may give an object of the script."""


def _names_bound(node: ast.AST) -> set[str]:
    """Return the names that a definition, parameter, pattern or comprehension gives a value that is not read."""
    if isinstance(node, ast.comprehension):
        return {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    if isinstance(node, (ast.alias, ast.keyword)):
        return set()
    return {name for kind in ("arg", "name", "rest") if isinstance(name := getattr(node, kind, None), str)}


def _owner(node: ast.expr) -> ast.expr:
    """Return `a` for `a.b["c"]` and for `vars(a)`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "vars":
        return _owner(node.args[0])
    return node


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
    return isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.Match, ast.Try))


def _reads_of_parameters(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names in a function that stand for its parameters. Their values depend on the call."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        names = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        for inner in (n for statement in node.body for n in ast.walk(statement)):
            if isinstance(inner, ast.Name) and inner.id in names:
                yield inner
