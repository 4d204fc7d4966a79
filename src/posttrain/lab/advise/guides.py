"""The rules of the advisor, read from `guides.yaml` and checked: facts, values, algorithms and sources must exist.

Conditions are data, too: `{data: verifier, size: {at_least: 7}}`, asked of facts, of a card or of a configuration.

    value           it is that, or has it among its values
    [a, b]          one of them
    {all: [a, b]}   all of them among its values
    {not: ...}      anything else, also where it is not known
    {at_least: n} {above: n} {at_most: n} {below: n}      a number, several of them for a range
    known, unknown  something is known, or nothing

What is not known meets only `unknown` and `not`. A list of conditions is met when one of them is.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.algorithms.credit import no_turns_for

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


FILE = Path(__file__).with_name("guides.yaml")
OWN = "own"
"""As a source: the paper of the algorithm itself."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """A reason, true of the algorithm that it is said of."""

    text: str
    source: tuple[str, ...]
    """Keys of `Guides.sources`, or `own`."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A reason for or against algorithms in a situation."""

    id: str
    when: Condition
    weigh: Mapping[str, float] = field(default_factory=dict)
    """Key -> points; groups are resolved."""
    veto: frozenset[str] = frozenset()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key -> what the situation asks for beside the algorithm: dotted settings of any section."""
    reason: Said
    apart: Mapping[str, Said] = field(default_factory=dict)
    """Key -> what is said of it in place of `reason`."""

    def said_of(self, key: str) -> Said:
        """Why this rule speaks for or against that algorithm."""
        return self.apart.get(key, self.reason)

    @property
    def source(self) -> tuple[str, ...]:
        """Of everything that it says."""
        return tuple(dict.fromkeys(key for said in (self.reason, *self.apart.values()) for key in said.source))


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How algorithms are known to go wrong."""

    of: frozenset[str]
    """Keys; groups are resolved."""
    what: str
    source: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is said where its condition is met: something to do first, wishes that cannot all be had, or a question on
    which guides disagree."""

    id: str
    when: Condition
    text: str
    source: tuple[str, ...]
    """Keys of `Guides.sources`; none where the text names them itself."""
    blocks: bool = False
    """For a first step: is learning from rewards in vain until it is done?"""
    told: Mapping[str, Any]
    """As guides.yaml has it."""


@dataclass(frozen=True, kw_only=True)
class Guides:
    """Everything that the advisor knows."""

    sources: Mapping[str, str]
    rules: tuple[Rule, ...]
    failures: tuple[Failure, ...]
    contradictions: tuple[Entry, ...]
    disagreements: tuple[Entry, ...]
    before: tuple[Entry, ...]
    well_known: tuple[str, ...]
    """Among the algorithms that are ruled out, those that people ask about."""
    assumptions: tuple[Mapping[str, Any], ...]
    """What is taken to be so, in this order: when, then (facts), and how that is said."""
    samples: Mapping[str, tuple[Any, ...]]
    """Fact -> values to try, to see whether it would change the answer."""

    def cited(self, keys: tuple[str, ...], algorithm: str | None = None) -> tuple[str, ...]:
        """The sources by their names; `own` is the paper of that algorithm."""
        papers = {OWN: ALGORITHMS[algorithm].card.paper if algorithm else "the papers of these algorithms"}
        return tuple(papers.get(key) or self.sources[key] for key in keys)


@functools.cache
def guides() -> Guides:
    """The rules of this version."""
    told = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    groups = {name: tuple(_members(where)) for name, where in told["groups"].items()}
    return Guides(
        sources=told["sources"],
        rules=tuple(_rule(rule, groups) for rule in told["rules"]),
        failures=tuple(
            Failure(**{**_cited(entry), "of": frozenset(_resolved(entry["of"], groups))}) for entry in told["failures"]
        ),
        contradictions=tuple(_entry(one, f"{one['wishes']}. {one['answer']}") for one in told["contradictions"]),
        disagreements=tuple(_entry(one, _both_sides(one, told["sources"])) for one in told["disagreements"]),
        before=tuple(_entry(one, one["do"]) for one in told["before"]),
        well_known=tuple(told["well_known"]),
        assumptions=tuple(told["assumptions"]),
        samples={name: tuple(values) for name, values in told["samples"].items()},
    )


def _entry(told: Mapping[str, Any], text: str) -> Entry:
    source = _cited(told)["source"] if "source" in told else ()
    return Entry(
        id=told["id"], when=told["when"], text=text, source=source, blocks=told.get("blocks", False), told=told
    )


def _both_sides(told: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    sides = "; ".join(f"{side['says']} ({sources[side['source']]})" for side in told["sides"])
    return f"{told['question']} {sides}. Here: {told['here']}"


def _members(where: Condition) -> Iterator[str]:
    return (key for key, kind in ALGORITHMS.that_load() if met(where, _asked(kind)))


def _asked(kind: type[Algorithm]) -> dict[str, Any]:
    """What a group can ask of an algorithm with its default settings."""
    return {
        "data_kind": kind.data_kind,
        "online": samples(kind),
        "learns_from_rewards": from_rewards(kind),
        "min_group_size": kind().group_size_needed,
        "needs": kind().needs,
        "credits_turns": samples(kind) and no_turns_for(kind()) is None,
    }


def from_rewards(kind: type[Algorithm]) -> bool:
    """Does it sample answers that something has to score?"""
    return samples(kind) and bool(kind().learns_from_rewards)


def samples(kind: type[Algorithm]) -> bool:
    """Does it learn from answers of its own? The others learn from given rows."""
    return kind.data_kind == "prompts"


Groups = Mapping[str, tuple[str, ...]]


def _rule(told: Mapping[str, Any], groups: Groups) -> Rule:
    """What is said of an algorithm by its name goes before what is said of a group that it is in."""
    by_name = sorted(told.get("weigh", {}).items(), key=lambda item: not item[0].startswith("@"))
    weigh: dict[str, float] = {}
    for name, points in by_name:
        for key in _resolved([name], groups):
            weigh.setdefault(key, points)
    source = _cited(told)["source"]
    apart = {key: Said(text=told["against"], source=source) for key in weigh if weigh[key] < 0 and "against" in told}
    for entry in told.get("apart", ()):
        said = Said(text=entry["reason"], source=_cited(entry)["source"])
        apart |= dict.fromkeys(_resolved(entry["of"], groups), said)
    settings = {key: asked for name, asked in told.get("settings", {}).items() for key in _resolved([name], groups)}
    return Rule(
        id=told["id"],
        when=told["when"],
        weigh=weigh,
        veto=frozenset(_resolved(told.get("veto", ()), groups)),
        settings=settings,
        reason=Said(text=told["reason"], source=source),
        apart=apart,
    )


def _resolved(names: Iterable[str], groups: Groups) -> list[str]:
    """Keys in the order of the names, and of `ALGORITHMS` within a group."""
    return [key for name in names for key in (groups[name] if name.startswith("@") else [ALGORITHMS[name].key])]


def _cited(told: Mapping[str, Any]) -> dict[str, Any]:
    source = told["source"]
    return {**told, "source": (source,) if isinstance(source, str) else tuple(source)}
