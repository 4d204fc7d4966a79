"""The choice of an algorithm: `advise(facts)` applies every rule of the guides to the facts and gives the reasons.

One engine runs all rules. If the facts meet a rule, the rule adds its points to the algorithms that it names, or
excludes them. This module names no algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.base import NEEDS, Algorithm
from posttrain.algorithms.credit import no_turns_for
from posttrain.errors import ConfigError
from posttrain.lab.advise.advice import Advice, Change, Point, Reason, Recommendation, RunnerUp
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.guides import Entry, Rule, guides, met, names_in
from posttrain.lab.advise.starter import COLUMNS, changes_to_fit, cost_of, settings_for, starter

RECOMMENDED = 3
RUNNERS_UP = 4
ALGORITHM = "algorithm."
"""Prefix of the names of an algorithm's own settings."""
CREDIT = "environment.credit"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An algorithm with everything that the rules say about it for the given facts."""

    algorithm: str
    score: float
    met: Sequence[Rule]
    """All rules that the facts meet. Most standings are only compared, so what the rules say is found when asked."""
    excluded: bool

    @property
    def possible(self) -> bool:
        return not self.excluded and self.score > 0

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        weighed = ((rule, rule.weigh.get(self.algorithm)) for rule in self.met)
        return tuple(_reason(rule, points, self.algorithm) for rule, points in weighed if points)

    @cached_property
    def vetoes(self) -> tuple[Reason, ...]:
        return tuple(_reason(rule, 0, self.algorithm) for rule in self.met if self.algorithm in rule.veto)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Dotted settings that the rules require with this algorithm."""
        settings: dict[str, Any] = {}
        for rule in self.met:
            settings |= rule.settings.get(self.algorithm, {})
        return settings

    @property
    def speaks_for(self) -> tuple[Reason, ...]:
        return tuple(sorted((r for r in self.reasons if r.points > 0), key=lambda r: -r.points))

    @property
    def speaks_against(self) -> tuple[Reason, ...]:
        return tuple(sorted((r for r in self.reasons if r.points < 0), key=lambda r: r.points))


def advise(facts: Facts | Mapping[str, Any] | None = None, **given: Any) -> Advice:
    """Return ranked recommendations with reasons and sources. Contradictory facts raise a ConfigError.

    >>> advise(data="verifier", size="7b").best.algorithm
    'grpo'
    """
    if facts is not None and given:
        raise ConfigError(
            given="facts, and keywords as well", allowed="one of the two", fix="Write advise(data='pairs', size='7b')."
        )
    told = facts if isinstance(facts, Facts) else Facts(**(facts or given))
    full, assumed = told.assumed()
    ranked, known = rank(full), full.known()
    possible = [standing for standing in ranked if standing.possible]
    chosen = possible[:RECOMMENDED]
    said = guides()
    return Advice(
        facts=full,
        assumed=assumed,
        before=_points(said.before, known),
        contradictions=_points(said.contradictions, known),
        recommendations=tuple(_recommended(standing, full) for standing in chosen),
        runners_up=tuple(_runners_up(ranked, chosen, possible)),
        disagreements=_points(said.disagreements, known),
        would_change=tuple(_would_change(told.shaped()[0], possible[0].algorithm if possible else None)),
    )


def rank(facts: Facts) -> list[Standing]:
    """Return every algorithm, best first and excluded ones last. Ties keep the order of the guides."""
    known = facts.known()
    rules = [rule for rule in guides().rules if met(rule.when, known)]
    named = dict.fromkeys([*(key for rule in rules for key in rule.weigh), *ALGORITHMS])
    standings = [_standing(key, rules) for key in named]
    return sorted(standings, key=lambda s: (s.excluded, -s.score))


def _standing(key: str, rules: Sequence[Rule]) -> Standing:
    return Standing(
        algorithm=key,
        score=sum(rule.weigh.get(key, 0) for rule in rules),
        met=rules,
        excluded=any(key in rule.veto for rule in rules),
    )


def _reason(rule: Rule, points: float, key: str) -> Reason:
    said = rule.said_of(key)
    return Reason(rule=rule.id, points=points, text=said.text, sources=guides().cited(said.source, key))


def _recommended(standing: Standing, facts: Facts) -> Recommendation:
    kind = ALGORITHMS[standing.algorithm]
    asked, beside = _own_and_others(standing.settings)
    settings, beside = _agreeing(kind, settings_for(kind, facts, asked), asked, beside)
    config = starter(kind, facts, settings, beside)
    if changes := changes_to_fit(config, facts):
        config = starter(kind, facts, settings, {**beside, **changes})
    return Recommendation(
        algorithm=kind.key,
        title=kind.card.title,
        score=standing.score,
        reasons=standing.speaks_for,
        concerns=standing.speaks_against,
        cost=cost_of(kind.key, facts, settings, config),
        needs=tuple(_needs(kind(**settings))),
        failures=tuple(failure.what for failure in guides().failures if kind.key in failure.of),
        avoid_when=kind.card.avoid_when,
        settings=settings,
        config=config,
    )


def _agreeing(
    kind: type[Algorithm], settings: dict[str, Any], asked: dict[str, Any], beside: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the algorithm's settings and those of other sections, without the ones that exclude each other: a usual
    value gives way to credit by turn, and credit by turn gives way to what rules ask of the algorithm."""
    if beside.get(CREDIT) != "turn" or no_turns_for(kind(**settings)) is None:
        return settings, beside

    def agrees(name: str) -> bool:
        return name in asked or no_turns_for(kind(**{**asked, name: settings[name]})) is None

    kept = {name: value for name, value in settings.items() if agrees(name)}
    if no_turns_for(kind(**kept)) is None:
        return kept, beside
    return settings, {name: value for name, value in beside.items() if name != CREDIT}


def _own_and_others(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split dotted settings: (the algorithm's own, without the prefix; those of other sections, still dotted)."""
    own = {name: value for name, value in settings.items() if name.startswith(ALGORITHM)}
    others = {name: value for name, value in settings.items() if name not in own}
    return {name.removeprefix(ALGORITHM): value for name, value in own.items()}, others


def _needs(algorithm: Algorithm) -> Iterator[str]:
    yield f"data: {COLUMNS[algorithm.data_kind]}"
    if algorithm.data_kind == "prompts" and algorithm.group_size_needed > 1:
        yield f"at least {algorithm.group_size_needed} answers to each prompt"
    yield from (f"{need}: {meaning}" for need, meaning in NEEDS.items() if need in algorithm.needs)


def _runners_up(
    ranked: Iterable[Standing], chosen: Iterable[Standing], possible: Iterable[Standing]
) -> Iterator[RunnerUp]:
    """Yield the next-ranked algorithms, and the well-known ones that these facts exclude."""
    first, *_ = [*chosen, None]
    above = {standing.algorithm for standing in chosen}
    after = [standing for standing in possible if standing.algorithm not in above]
    out = [standing for standing in ranked if not standing.possible and (standing.reasons or standing.vetoes)]
    well_known = [standing for standing in out if standing.algorithm in guides().well_known]
    for standing in [*after[:RUNNERS_UP], *well_known]:
        yield _runner_up(standing, first)


def _runner_up(standing: Standing, first: Standing | None) -> RunnerUp:
    worst = next(iter((*standing.vetoes, *standing.speaks_against)), None)
    if worst is None and first is not None:
        why = f"it has fewer points than {first.algorithm}: {standing.score:g} against {first.score:g}"
    else:
        why = worst.text if worst else "none of these facts speaks for it"
    return RunnerUp(
        algorithm=standing.algorithm,
        title=ALGORITHMS[standing.algorithm].card.title,
        score=None if standing.vetoes else standing.score,
        why_not=why,
        rule=worst.rule if worst else None,
    )


def _points(entries: Iterable[Entry], known: Mapping[str, Any]) -> tuple[Point, ...]:
    """Return the entries whose condition is met, as points."""
    return tuple(
        Point(id=entry.id, text=entry.text, sources=guides().cited(entry.source), blocks=entry.blocks)
        for entry in entries
        if met(entry.when, known)
    )


def _would_change(facts: Facts, best: str | None) -> Iterator[Change]:
    """Yield each unknown fact with the values that would put another algorithm first."""
    asked = dict.fromkeys(name for rule in guides().rules for name in names_in(rule.when))
    for name in asked:
        if name not in Facts.model_fields or getattr(facts, name) not in (None, ()):
            continue
        for value in guides().samples.get(name, ()):
            try:
                changed = Facts(**(facts.model_dump(exclude_none=True) | {name: value}))
            except ConfigError:
                continue
            first = rank(changed.assumed()[0])[0]
            if first.possible and first.algorithm != best:
                yield Change(fact=name, value=str(value).lower(), algorithm=first.algorithm)
