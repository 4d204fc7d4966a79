"""Describes the JSON schema of the settings in words: allowed values, errors in values, and the reference page.

The configuration models and the algorithm classes declare each setting once. pydantic makes JSON schemas of them, which
give error messages, `--help` and the page docs/config.md.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from pydantic import ValidationError

from posttrain.config.names import Hint, suggest, value_of_ours
from posttrain.config.text import Steps, dotted, leaves, show
from posttrain.errors import ConfigError, PosttrainError

Schema = Mapping[str, Any]

SHOWN_PROBLEMS = 20
"""Maximum number of listed problems. Others are only counted: a file for another library can have hundreds."""
MOST_HINTS = 100
"""Number of problems with a hint and a line. Only a file that is no configuration has more, and not all are shown."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in the configuration."""

    path: Steps
    given: str
    allowed: str = ""
    fix: str = ""
    meant: str = ""
    """Key of ours that an unknown key probably means."""
    missing: bool = False
    """True if nothing was given."""
    example: Any = None
    """Example of an allowed value."""
    place: str = ""
    """File and line, or command-line argument, that gave the value."""

    @classmethod
    def of(cls, error: PosttrainError, place: str = "") -> Problem:
        """Return an error that is not about one setting as a problem."""
        return cls(path=(), given=error.given, allowed=error.allowed, fix=error.fix, place=place)

    def error(self, around: str = "") -> ConfigError:
        """Return the error with the place of the value. The file `around` is not repeated in it."""
        place = self.place.removeprefix(f"{around}, ") if self.place != around else ""
        given = f"{self.given} ({place})" if place else self.given
        return ConfigError(given=given, allowed=self.allowed, fix=self.fix)


class Problems(ValueError):
    """Several mistakes in one section, raised in a validator and passed on by pydantic."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.given for problem in problems))
        self.problems = list(problems)


@dataclass(frozen=True, kw_only=True)
class FieldDoc:
    """Documentation of one setting, for the reference page and --help."""

    path: str
    """Dotted path; N stands for the position in a list."""
    type: str
    default: Any
    """Default value; None also if the setting is required."""
    required: bool
    doc: str


class Walker:
    """Finds and describes the nodes of one JSON schema."""

    def __init__(self, schema: Schema) -> None:
        self.root = schema
        self.definitions = schema.get("$defs", {})

    def variants(self, node: Schema) -> list[Schema]:
        """Return the alternatives that a node allows, with references resolved."""
        if "$ref" in node:
            return self.variants(self.definitions[node["$ref"].rpartition("/")[2]])
        if alternatives := node.get("anyOf") or node.get("oneOf"):
            return [v for option in alternatives for v in self.variants(option)]
        return [node]

    def child(self, node: Schema, step: str | int) -> Schema | None:
        """Return the node one step down; None if the schema has no such step, `{}` if it allows any value."""
        for variant in self.variants(node):
            if isinstance(step, str) and step in variant.get("properties", {}):
                return variant["properties"][step]
            if isinstance(step, int) and "items" in variant:
                return variant["items"]
        return {} if isinstance(step, str) and self.is_free(node) else None

    def is_free(self, node: Schema) -> bool:
        """Return true if users choose the keys at this node."""
        return any(v.get("additionalProperties", False) and not v.get("properties") for v in self.variants(node))

    def clean(self, location: Iterable[str | int]) -> tuple[Steps, Schema]:
        """Return a pydantic location without the names of union members, and the node at that path."""
        node, path = self.root, []
        for step in location:
            below = self.child(node, step)
            if below is not None:
                node, path = below, [*path, step]
        return tuple(path), node

    def describe(self, node: Schema) -> str:
        """Return the allowed values of a node, in words.

        >>> Walker({}).describe({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
        'an integer of at least 1 or null'
        """
        return _alternatives([word for v in self.variants(node) for word in _describe(v, self)])

    @cached_property
    def fields(self) -> tuple[FieldDoc, ...]:
        """All leaves, in the order of declaration."""
        return tuple(self._fields(self.root, ()))

    def _fields(self, node: Schema, path: tuple[str, ...]) -> Iterator[FieldDoc]:
        for variant in self.variants(node):
            for name, below in variant.get("properties", {}).items():
                yield from self._field((*path, name), below, required=name in variant.get("required", ()))

    def _field(self, path: tuple[str, ...], node: Schema, required: bool) -> Iterator[FieldDoc]:
        items = next((v["items"] for v in self.variants(node) if "items" in v), {})
        below = [*self._fields(node, path), *self._fields(items, (*path, "N"))]
        if below and not any(v.get("type") == "null" for v in self.variants(node)) and not items:
            yield from below
            return
        yield FieldDoc(
            path=".".join(path),
            type=self.describe(node),
            default=node.get("default"),
            required=required,
            doc=" ".join(node.get("description", "").split()),
        )
        yield from below


def _alternatives(words: Sequence[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _describe(node: Schema, walker: Walker) -> list[str]:
    """Return the alternatives of one variant in words."""
    if "const" in node or "enum" in node:
        return [show(v) for v in node.get("enum", [node.get("const")])]
    match node.get("type"):
        case "integer":
            return [f"an integer{_bounds(node)}"]
        case "number":
            return [f"a number{_bounds(node)}"]
        case "boolean":
            return ["true", "false"]
        case "string":
            return [node.get("x-said", "text")]
        case "null":
            return ["null"]
        case "array":
            return [f"a list ({walker.describe(node['items'])} each)" if node.get("items") else "a list"]
        case "object" if node.get("properties"):
            return [_section(list(node["properties"]))]
        case "object":
            return ["a section with keys of your own"]
    return ["plain data (text, numbers, true, false, null, lists and sections)"]


def _section(names: list[str]) -> str:
    return f"a section ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"


def _bounds(node: Schema) -> str:
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    lower = f"of at least {low}" if low is not None else f"above {above}" if above is not None else ""
    upper = f"of at most {high}" if high is not None else f"below {below}" if below is not None else ""
    words = " and ".join(filter(None, (lower, upper)))
    return f" {words}" if words else ""


def explain(
    error: ValidationError,
    walker: Walker,
    known: Callable[[], Iterable[str]],
    prefix: Steps = (),
    own: Callable[[], Collection[str]] = list,
) -> list[Problem]:
    """Return each mistake that pydantic found, with its path and our message.

    `known` returns the names of all settings, and `own` the names that exist with the chosen algorithm; both are called
    only for an unknown key. `prefix` is the path of the schema in the configuration.
    """
    found: dict[Steps, list[Problem]] = {}
    known, own = cache(known), cache(own)
    for detail in error.errors():
        inner, node = walker.clean(detail["loc"])
        path = (*prefix, *inner)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            problems = cause.problems
        elif isinstance(cause, ConfigError):
            problems = [_refused(path, cause)]
        elif detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            hints = max(0, MOST_HINTS - len(found))
            problems = unknown((*path, detail["loc"][-1]), detail["input"], known(), own(), hints=hints)
        elif detail["type"] == "missing":
            problems = [missing(path, node, walker)]
        else:
            problems = [mistyped(path, node, detail["input"], walker)]
        for problem in problems:
            if problem not in found.setdefault(problem.path, []):
                found[problem.path].append(problem)
    above = {path[:length] for path in found for length in range(len(path))}
    # Of a value that fits no alternative, only the deepest problem is reported.
    return [problem for path in found if path not in above for problem in found[path]]


def unknown(
    path: Steps, value: Any, known: Iterable[str], own: Collection[str] = (), *, hints: int = MOST_HINTS
) -> list[Problem]:
    """Return one problem for each leaf below a key that does not exist.

    The first `hints` problems say which setting may be meant.
    """
    known = list(known)
    problems: list[Problem] = []
    for leaf, leaf_value in leaves(value, path):
        name = ".".join(str(step) for step in leaf if not isinstance(step, int))
        shown = show(leaf_value, key=str(leaf[-1]))
        hint = suggest(name, shown, known, own) if len(problems) < hints else Hint("")
        given = f"{dotted(leaf)} = {shown} is not a setting"
        problems.append(Problem(path=leaf, given=given, fix=hint.text, meant=hint.key))
    return problems


def _refused(path: Steps, cause: ConfigError) -> Problem:
    given = f"{dotted(path)}: {cause.given}" if path else cause.given
    return Problem(path=path, given=given, allowed=cause.allowed, fix=cause.fix)


def missing(path: Steps, node: Schema, walker: Walker) -> Problem:
    """Return the problem of a required setting that is missing."""
    example = node.get("examples", [None])[0]
    fix = f"Set {dotted(path)} = {show(example)}, for example." if example is not None else f"Set {dotted(path)}."
    given = f"{dotted(path)} is missing"
    allowed = walker.describe(node)
    return Problem(path=path, given=given, allowed=allowed, fix=fix, missing=True, example=example)


def mistyped(path: Steps, node: Schema, value: Any, walker: Walker) -> Problem:
    """Return the problem of a value of the wrong type or size, with the likeliest fix."""
    name = dotted(path) or "the configuration"
    fix = _fix(name, node, value, walker)
    return Problem(path=path, given=f"{name} = {show(value)}", allowed=walker.describe(node), fix=fix)


_SPELLINGS_OF_BOOL = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _fix(name: str, node: Schema, value: Any, walker: Walker) -> str:
    variants = walker.variants(node)
    types = {v.get("type") for v in variants}
    numeric = bool(types & {"integer", "number"})
    choices = [str(c) for v in variants for c in v.get("enum", [v.get("const")]) if c is not None]
    if isinstance(value, str) and value.lower() in _SPELLINGS_OF_BOOL and "boolean" in types:
        return f"Write {name} = {_SPELLINGS_OF_BOOL[value.lower()]}."
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and "string" in types
        and not numeric
        and not choices
    ):
        return f'Put it in quotes: {name} = "{value}".'
    if isinstance(value, Mapping) and "string" in types and all(v is None for v in value.values()):
        return f'Put the text in quotes: {name} = "{{{", ".join(map(str, value))}}}".'
    if "array" in types and not isinstance(value, list) and _fits_a_list(value, variants, walker):
        return f"Write a list: {name} = {show([value])}."
    if isinstance(value, str) and (same := value_of_ours(name, value)):
        return same
    if isinstance(value, str) and (close := difflib.get_close_matches(value, choices, n=1)):
        return f"Did you mean {close[0]}?"
    return _valid_value(name, node, types)


_KINDS = {str: {"string"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}}
"""Type of a value -> its types in JSON schema."""


def _fits_a_list(value: Any, variants: Iterable[Schema], walker: Walker) -> bool:
    """Can an entry of the list have the type of this value? If the schema names no type, every value can."""
    kinds = {"object"} if isinstance(value, Mapping) else _KINDS.get(type(value), set())
    entries = (entry for v in variants if v.get("type") == "array" for entry in walker.variants(v.get("items", {})))
    return any(entry.get("type") in {None, *kinds} for entry in entries)


def _valid_value(name: str, node: Schema, types: set[str | None]) -> str:
    if "object" in types and node.get("examples"):  # a section that has no default
        return f"Write its settings below {name}, for example {name} = {show(node['examples'][0])}."
    if "object" in types and not isinstance(node.get("default"), str):
        return f"Write its settings below {name}, or set {name} = {{}} for all defaults."
    if node.get("default") is not None:
        return f"Set {name} = {show(node['default'])}, the default."
    if node.get("examples"):
        return f"Set {name} = {show(node['examples'][0])}, for example."
    return f"Leave {name} out, or write one of these."


def combine(problems: Sequence[Problem], where: str) -> ConfigError:
    """Return all problems as one error. A setting that is missing because its key is misspelt is not reported twice."""
    meant = [problem.meant for problem in problems if problem.meant]
    problems = [p for p in problems if not (p.missing and any(_covers(dotted(p.path), key) for key in meant))]
    if len(problems) == 1:
        return problems[0].error()
    lines = []
    for number, problem in enumerate(problems[:SHOWN_PROBLEMS], 1):
        lines.append(f"{number}. " + textwrap.indent(str(problem.error(where)), "   ").lstrip())
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"... and {len(problems) - SHOWN_PROBLEMS} more.")
    return ConfigError(given=f"{len(problems)} problems in {where}", fix="\n  ".join(lines))


def _covers(path: str, key: str) -> bool:
    return key == path or key.startswith(f"{path}.")
