"""Conditions as data: `{data: verifier, size: {at_least: 7}}`, asked of facts, of a card or of a configuration.

    value           it is that, or has it among its values
    [a, b]          one of them
    {all: [a, b]}   all of them among its values
    {not: ...}      anything else, also where it is not known
    {at_least: n} {above: n} {at_most: n} {below: n}      a number, several of them for a range
    known, unknown  something is known, or nothing

What is not known meets only `unknown` and `not`. A list of conditions is met when one of them is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Condition = Mapping[str, Any] | list[Mapping[str, Any]]
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


def met(condition: Condition, known: Mapping[str, Any]) -> bool:
    """Is the condition met by what is known? Raises KeyError for a name that nothing is known by.

    >>> met({"size": {"at_least": 7}, "data": ["pairs", "thumbs"]}, {"size": 8, "data": ("pairs", "verifier")})
    True
    """
    cases = condition if isinstance(condition, list) else [condition]
    return any(all(_meets(known[name], wanted) for name, wanted in case.items()) for case in cases)


def names_in(condition: Condition) -> Iterator[str]:
    """What a condition asks for."""
    for case in condition if isinstance(condition, list) else [condition]:
        yield from case


def _meets(value: Any, wanted: Any) -> bool:
    has = list(value) if isinstance(value, (tuple, list, set, frozenset)) else [] if value is None else [value]
    if wanted in ("known", "unknown"):
        return bool(has) == (wanted == "known")
    if isinstance(wanted, list):
        return any(one in has for one in wanted)
    if isinstance(wanted, Mapping):
        return all(_compares(how, has, limit) for how, limit in wanted.items())
    return wanted in has


def _compares(how: str, has: list[Any], limit: Any) -> bool:
    if how == "not":
        return not _meets(has, limit)
    if how == "all":
        return all(one in has for one in limit)
    return bool(has) and COMPARISONS[how](has[0], limit)


def in_words(condition: Condition) -> str:
    """The condition for a table: `data = verifier, size >= 7`."""
    cases = condition if isinstance(condition, list) else [condition]
    return "; or ".join(", ".join(_words(name, wanted) for name, wanted in case.items()) or "always" for case in cases)


def _words(name: str, wanted: Any) -> str:
    if wanted in ("known", "unknown"):
        return f"{name} {wanted}"
    if isinstance(wanted, list):
        return f"{name} = {' or '.join(map(_plain, wanted))}"
    if not isinstance(wanted, Mapping):
        return f"{name} = {_plain(wanted)}"
    signs = {"at_least": ">=", "above": ">", "at_most": "<=", "below": "<"}
    parts = []
    for how, limit in wanted.items():
        if how == "not":
            parts.append(f"not ({_words(name, limit)})")
        elif how == "all":
            parts.append(f"{name} = {' and '.join(map(_plain, limit))}")
        else:
            parts.append(f"{name} {signs[how]} {limit}")
    return ", ".join(parts)


def _plain(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
