"""The rules of the advisor, read from `guides.yaml` and checked: facts, values, algorithms and sources must exist.

Conditions are data, too: `{data: verifier, size: {at_least: 7}}`. They test facts, a card or a configuration.

    value           the fact has this value, or has it among its values
    [a, b]          the fact has one of these values
    {all: [a, b]}   the fact has all of these values
    {not: ...}      the fact does not meet the inner condition; an unknown fact passes, too
    {at_least: n} {above: n} {at_most: n} {below: n}      a bound on a number; combine several for a range
    known, unknown  the fact is known, or unknown

An unknown fact meets only `unknown` and `not`. A list of conditions is met if any of them is met.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.algorithms.credit import no_turns_for
from posttrain.verify import read_table

Condition = Mapping[str, Any] | list[Mapping[str, Any]]
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


def met(condition: Condition, known: Mapping[str, Any]) -> bool:
    """Do the known facts meet the condition? A name that is not in `known` raises KeyError.

    >>> met({"size": {"at_least": 7}, "data": ["pairs", "thumbs"]}, {"size": 8, "data": ("pairs", "verifier")})
    True
    """
    cases = condition if isinstance(condition, list) else [condition]
    return any(all(_meets(known[name], wanted) for name, wanted in case.items()) for case in cases)


def names_in(condition: Condition) -> Iterator[str]:
    """Yield the names of the facts in a condition."""
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
    """Return the condition as text for a table: `data = verifier, size >= 7`."""
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
"""A source key that stands for the paper of the algorithm itself."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """A reason that holds for the algorithms it is attached to."""

    text: str
    source: tuple[str, ...]
    """Keys of `Guides.sources`, or `own`."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A reason for or against algorithms in a situation."""

    id: str
    when: Condition
    weigh: Mapping[str, float] = field(default_factory=dict)
    """Algorithm key -> points, with groups resolved."""
    veto: frozenset[str] = frozenset()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Algorithm key -> dotted settings, of any section, that the situation requires with the algorithm."""
    reason: Said
    apart: Mapping[str, Said] = field(default_factory=dict)
    """Algorithm key -> the reason given for it instead of `reason`."""

    def said_of(self, key: str) -> Said:
        """Return why this rule speaks for or against an algorithm."""
        return self.apart.get(key, self.reason)

    @property
    def source(self) -> tuple[str, ...]:
        """The sources of all its reasons."""
        return tuple(dict.fromkeys(key for said in (self.reason, *self.apart.values()) for key in said.source))


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A known failure mode of some algorithms."""

    of: frozenset[str]
    """Algorithm keys, with groups resolved."""
    what: str
    source: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A text shown if its condition is met: a first step, goals that contradict each other, or a question on which
    guides disagree."""

    id: str
    when: Condition
    text: str
    source: tuple[str, ...]
    """Keys of `Guides.sources`. Empty if the text names its sources."""
    blocks: bool = False
    """For a first step: is learning from rewards pointless until it is done?"""
    told: Mapping[str, Any]
    """The entry as it is in guides.yaml."""


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
    """Keys of popular algorithms. If one is excluded, the advice says why."""
    assumptions: tuple[Mapping[str, Any], ...]
    """Assumptions, applied in this order: `when` (condition), `then` (facts), and `says` (the text)."""
    samples: Mapping[str, tuple[Any, ...]]
    """Fact -> values to try, to find out whether the fact would change the answer."""

    def cited(self, keys: tuple[str, ...], algorithm: str | None = None) -> tuple[str, ...]:
        """Return the full names of the sources. `own` becomes the paper of that algorithm."""
        papers = {OWN: _paper(algorithm)} if OWN in keys else {}
        return tuple(papers.get(key) or self.sources[key] for key in keys)


def _paper(algorithm: str | None) -> str:
    return ALGORITHMS[algorithm].card.paper if algorithm else "the papers of these algorithms"


@functools.cache
def guides() -> Guides:
    """Read and return the advisor's rules."""
    told = read_table(FILE)
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
    """Return the properties of an algorithm, with default settings, that a group's condition can test."""
    return {
        "data_kind": kind.data_kind,
        "online": samples(kind),
        "learns_from_rewards": from_rewards(kind),
        "min_group_size": kind().group_size_needed,
        "needs": kind().needs,
        "credits_turns": samples(kind) and no_turns_for(kind()) is None,
    }


def from_rewards(kind: type[Algorithm]) -> bool:
    """Does the algorithm sample answers that need a score?"""
    return samples(kind) and bool(kind().learns_from_rewards)


def samples(kind: type[Algorithm]) -> bool:
    """Does the algorithm learn from its own samples? The others learn from given rows."""
    return kind.data_kind == "prompts"


Groups = Mapping[str, tuple[str, ...]]


def _rule(told: Mapping[str, Any], groups: Groups) -> Rule:
    """Build a rule. An entry for an algorithm takes precedence over an entry for one of its groups."""
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
    """Return algorithm keys in the order of the names, and within a group in the order of `ALGORITHMS`."""
    return [key for name in names for key in (groups[name] if name.startswith("@") else [ALGORITHMS[name].key])]


def _cited(told: Mapping[str, Any]) -> dict[str, Any]:
    source = told["source"]
    return {**told, "source": (source,) if isinstance(source, str) else tuple(source)}
