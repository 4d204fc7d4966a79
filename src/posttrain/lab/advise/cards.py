"""The facts of every algorithm as data: what advisor, planner and explorer read where torch is not imported.

`cards.json` is written from the classes by `python -m posttrain.explain --cards FILE`; a test compares the two.

What the machinery has to compute for an algorithm depends on its settings. A card holds that as alternatives, each a
few settings with the kinds of value that they must have: `[{"kl": ["reward"], "kl_coef": ["nonzero"]}]`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError

FILE = Path(__file__).with_name("cards.json")
CORRECTION = "correction"
"""The one setting whose names stand for settings; those of a correction count as `correction.normalize`."""

Condition = tuple[Mapping[str, tuple[str, ...]], ...]
"""Alternatives; in each, every setting must be of one of its kinds. No alternative: never. An empty one: always."""


def kind_of(value: Any) -> str:
    """The kind of a value that a condition speaks of.

    >>> [kind_of(value) for value in (None, True, 0, 0.04, "token")]
    ['none', 'true', 'zero', 'nonzero', 'token']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "nonzero" if value else "zero"
    return str(value)


def kinds_of(settings: Mapping[str, Any], corrections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Setting -> kind of its value; a correction that is one, by name or by its settings, is told by its settings."""
    kinds = {name: kind_of(value) for name, value in settings.items() if name != CORRECTION}
    given = settings.get(CORRECTION)
    correction = given if isinstance(given, Mapping) else corrections.get(str(given), {})
    return kinds | {f"{CORRECTION}.{name}": kind_of(value) for name, value in correction.items()}


def holds(condition: Condition, kinds: Mapping[str, str]) -> bool:
    """Is one of the alternatives met? A setting that is not there has no kind.

    >>> holds(({"kl": ("reward", "loss"), "kl_coef": ("nonzero",)},), {"kl": "loss", "kl_coef": "nonzero"})
    True
    """
    return any(all(kinds.get(name) in allowed for name, allowed in case.items()) for case in condition)


@dataclass(frozen=True, kw_only=True)
class SettingCard:
    """A setting of an algorithm."""

    name: str
    type: str
    default: Any
    doc: str
    source: str
    """Where the default comes from."""


@dataclass(frozen=True, kw_only=True)
class NeedCard:
    """Something the machinery has to compute for the algorithm."""

    meaning: str
    by_default: bool
    decided_by: tuple[str, ...]
    """Settings that switch it on, or off where it is on by default; `a and b` only work together."""
    when: Condition
    """With which settings it is needed."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmCard:
    """What a class declares. `online` algorithms sample their own answers; the others learn from given ones."""

    key: str
    title: str
    paper: str
    summary: str
    formula: str
    data_kind: str
    online: bool
    learns_from_rewards: bool
    """Of those that sample: False where another teacher than a reward says what is good."""
    min_group_size: int
    """Fewest completions per prompt, with the default settings; of no meaning where nothing is sampled."""
    needs: Mapping[str, NeedCard]
    choices: Mapping[str, str]
    """The row of nine choices of a policy-gradient method, or of four of a preference loss."""
    settings: tuple[SettingCard, ...]
    models: tuple[str, ...]
    """What is in memory, in words."""
    use_when: str
    avoid_when: str
    differs: tuple[str, ...]
    corrections: Mapping[str, Mapping[str, Any]]
    """Name of a correction -> its settings; empty for an algorithm that takes none."""

    @property
    def defaults(self) -> dict[str, Any]:
        return {setting.name: setting.default for setting in self.settings}

    def needs_of(self, settings: Mapping[str, Any] | None = None) -> frozenset[str]:
        """What the machinery computes for these settings; one that is left out has its default.

        A correction of `auto` counts as none, as in the class: only a run decides it, and never for one that changes
        the needs.
        """
        given = dict(settings or {})
        if unknown := given.keys() - self.defaults.keys():
            raise ConfigError(
                given=f"{self.key} has no setting {min(unknown)!r}",
                allowed=", ".join(self.defaults) or "no settings",
                fix="Remove it.",
            )
        kinds = kinds_of(self.defaults | given, self.corrections)
        return frozenset(name for name, need in self.needs.items() if holds(need.when, kinds))


@functools.cache
def cards() -> Mapping[str, AlgorithmCard]:
    """Key -> card, in the order of `ALGORITHMS`."""
    told = _file()
    return {key: _card(key, card, told["corrections"]) for key, card in told["algorithms"].items()}


def options() -> Mapping[str, Mapping[str, str]]:
    """Choice of a policy-gradient method -> option -> what it computes, and who uses it."""
    return _file()["options"]


@functools.cache
def _file() -> Mapping[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def card_of(key: str) -> AlgorithmCard:
    """The card of an algorithm; a ConfigError lists the keys."""
    if key in cards():
        return cards()[key]
    raise ConfigError(
        given=f"there is no algorithm {key!r}",
        allowed=", ".join(cards()),
        fix="`posttrain explain` lists them with what they do.",
    )


def _card(key: str, told: Mapping[str, Any], corrections: Mapping[str, Mapping[str, Any]]) -> AlgorithmCard:
    settings = tuple(SettingCard(**setting) for setting in told["settings"])
    needs = {name: _need(need) for name, need in told["needs"].items()}
    takes = corrections if any(setting.name == CORRECTION for setting in settings) else {}
    lists = {name: tuple(told[name]) for name in ("models", "differs")}
    return AlgorithmCard(**{**told, **lists, "key": key, "settings": settings, "needs": needs, "corrections": takes})


def _need(told: Mapping[str, Any]) -> NeedCard:
    when = tuple({name: tuple(kinds) for name, kinds in case.items()} for case in told["when"])
    return NeedCard(**{**told, "decided_by": tuple(told["decided_by"]), "when": when})
