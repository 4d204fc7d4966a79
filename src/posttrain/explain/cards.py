"""The file advise/cards.json, written from the classes: what is known of an algorithm where torch is not imported.

With which settings an algorithm needs what is found by trying: from what the class says of many settings the fewest
conditions are read that agree with all of them, and a test compares them with the class on others.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.base import NEEDS, Algorithm, Need
from posttrain.algorithms.composition.about import ABOUT
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.names import NAMED
from posttrain.errors import ConfigError
from posttrain.explain import NeedFact, explain, values_to_try
from posttrain.lab.advise.cards import CORRECTION, Condition, holds, kinds_of

Kinds = dict[str, str]
CORRECTIONS: dict[str, dict[str, Any]] = {
    name: TypeAdapter(Correction).dump_python(correction, mode="json") for name, correction in NAMED.items()
}
RECORDS: tuple[dict[str, Any], ...] = tuple(
    {"anchor": anchor, **action}
    for anchor in ("trainer", "sampler", "loglinear")
    for action in (
        {"high": 2.0},
        {"action": "full"},
        {"action": "reject", "high": 2.0},
        {"high": 2.0, "normalize": True},
        {"action": "reject", "high": 2.0, "normalize": True},
        {"action": "mask", "score": "second_moment", "high": 0.04},
        {"action": "reject", "score": "second_moment", "high": 0.04},
        {"action": "mask", "high": 2.0, "rejected_in_denominator": False},
        {"action": "reject", "high": 2.0, "rejected_in_denominator": False},
    )
)
"""Corrections of one's own to try, beside those with a name."""


class Tried(NamedTuple):
    """What was changed of the defaults, the kinds of all values, and what the class says that it needs with them."""

    changed: tuple[tuple[str, str], ...]
    kinds: Kinds
    needs: frozenset[str]


def write_cards(path: str | Path) -> Path:
    """Write the facts of all algorithms; returns the file."""
    told = {"corrections": CORRECTIONS, "options": ABOUT, "algorithms": {key: describe(key) for key in ALGORITHMS}}
    Path(path).write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Path(path)


def describe(key: str) -> dict[str, Any]:
    """The facts of one algorithm as JSON has them."""
    cls, told = ALGORITHMS[key], explain(key)
    tried, facts = list(try_settings(cls)), {str(need.name): need for need in told.needs}
    names = ("title", "paper", "summary", "formula", "data_kind", "choices", "models", "differs")
    card = {name: getattr(told, name) for name in (*names, "use_when", "avoid_when")} | {
        "online": cls.data_kind == "prompts",
        "learns_from_rewards": cls.data_kind == "prompts" and bool(cls().learns_from_rewards),
        "min_group_size": cls().group_size_needed,
        "settings": [asdict(setting) for setting in told.settings],
        "needs": {
            need: _need(need, facts.get(need), tried) for need in NEEDS if any(need in found.needs for found in tried)
        },
    }
    return json.loads(json.dumps(card))


def _need(need: Need, fact: NeedFact | None, tried: Sequence[Tried]) -> dict[str, Any]:
    deciding = _deciding(need, tried)
    examples = [
        ({name: kind for name, kind in kinds.items() if name.partition(".")[0] in deciding}, need in needs)
        for _, kinds, needs in tried
    ]
    condition = learn(
        [(dict(kinds), needed) for kinds, needed in dict.fromkeys((tuple(k.items()), n) for k, n in examples)]
    )
    return {
        "meaning": NEEDS[need],
        "by_default": need in tried[0].needs,
        "decided_by": fact.decided_by if fact else tuple(sorted(deciding)),
        "when": sorted(({n: list(kinds) for n, kinds in case.items()} for case in condition), key=str),
    }


def _deciding(need: Need, tried: Sequence[Tried]) -> set[str]:
    """The settings that make a difference by themselves, or while another one is changed; else the two that do."""
    needed = {frozenset(changed): need in needs for changed, _, needs in tried}
    outcomes: dict[tuple[str, frozenset[Any]], set[bool]] = {}
    for changed, now in needed.items():
        for one in changed:
            rest = changed - {one}
            outcomes.setdefault((one[0], rest), set()).update({now, needed.get(rest, now)})
    found = {name for (name, _), seen in outcomes.items() if len(seen) > 1}
    together = [{name for name, _ in changed} for changed, now in needed.items() if now != needed[frozenset()]]
    return found.union(*(names for names in together if not names & found))


def try_settings(cls: type[Algorithm]) -> Iterator[Tried]:
    """The default settings, each setting changed by itself, and every two that matter, are names or refused alone."""
    adapter, default, values = TypeAdapter(cls), cls().needs, _values(cls)
    alone = {name: [(value, _built(cls, {name: value})) for value in tried] for name, tried in values.items()}
    matters = [
        name
        for name, tried in alone.items()
        if any(isinstance(value, str) or built is None or built.needs != default for value, built in tried)
    ]
    two = itertools.combinations(matters, 2)
    pairs = ({a: x, b: y} for a, b in two for x in values[a] for y in values[b])
    singles = (({name: value}, built) for name, tried in alone.items() for value, built in tried)
    for changed, built in (({}, cls()), *singles, *((pair, _built(cls, pair)) for pair in pairs)):
        if built is not None:
            settings = adapter.dump_python(built, mode="json", by_alias=True)
            told = tuple((name, repr(value)) for name, value in changed.items())
            yield Tried(told, kinds_of(settings, CORRECTIONS), frozenset(map(str, built.needs)))


def _values(cls: type[Algorithm]) -> dict[str, list[Any]]:
    values = values_to_try(cls)
    return values | {CORRECTION: [*values[CORRECTION], *RECORDS]} if CORRECTION in values else values


def _built(cls: type[Algorithm], given: dict[str, Any]) -> Algorithm | None:
    try:
        return cls(**given)
    except ConfigError:
        return None


def learn(examples: Sequence[tuple[Kinds, bool]]) -> Condition:
    """The fewest alternatives, of one setting or of two, that hold for the true examples and for no other.

    >>> learn([({"a": "x", "b": "zero"}, True), ({"a": "y", "b": "zero"}, False), ({"a": "y", "b": "nonzero"}, True)])
    ({'a': ('x',)}, {'b': ('nonzero',)})
    """
    left = [kinds for kinds, needed in examples if needed]
    against = [kinds for kinds, needed in examples if not needed]
    if not against:
        return ({},)
    found: list[dict[str, tuple[str, ...]]] = []
    for size in (1, 2):
        while left:
            cases = [case for names in _names(left, size) if (case := _case(names, left, against))]
            best = max(cases, key=lambda case: sum(holds((case,), kinds) for kinds in left), default=None)
            if best is None:
                break
            found.append(best)
            left = [kinds for kinds in left if not holds((best,), kinds)]
    if left:
        raise AssertionError(f"more than two settings decide together: {left[0]}")
    return tuple(found)


def _names(examples: Sequence[Kinds], size: int) -> Iterator[tuple[str, ...]]:
    return itertools.combinations(dict.fromkeys(name for kinds in examples for name in kinds), size)


def _case(names: tuple[str, ...], true: Sequence[Kinds], false: Sequence[Kinds]) -> dict[str, tuple[str, ...]] | None:
    """The kinds of these settings that occur in true examples and in no false one; the last name is cut to fit."""
    refused = {tuple(kinds.get(name) for name in names) for kinds in false}
    seen = {found for kinds in true if None not in (found := tuple(kinds.get(name) for name in names))}
    allowed = sorted(seen - refused)  # type: ignore[type-var]
    if not allowed:
        return None
    if len(names) == 1:
        return {names[0]: tuple(str(kind) for (kind,) in allowed)}
    first, second = _largest_rectangle(allowed)
    return {names[0]: first, names[1]: second}


def _largest_rectangle(cells: Sequence[tuple[Any, ...]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rows and columns of which every cell is there, as many cells as can be had from the columns of one row."""
    columns = {row: {b for a, b in cells if a == row} for row, _ in cells}
    best = max(
        (([row for row in columns if columns[row] >= wanted], wanted) for wanted in columns.values()),
        key=lambda found: len(found[0]) * len(found[1]),
    )
    return tuple(best[0]), tuple(sorted(best[1]))
