"""Analyses the runs of a comparison: scores of the arms, and differences between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from posttrain.config.text import redact
from posttrain.lab.experiments.compare.design import Design
from posttrain.lab.experiments.compare.estimates import Estimate, difference, holm, level, paired, ratio, smallest_seen
from posttrain.lab.experiments.compare.measures import COST, STABILITY, TO_TARGET, Measure
from posttrain.lab.experiments.compare.outcomes import Outcome, gave_the_same, has_collapsed
from posttrain.report.heldout import LOWER_IS_BETTER


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arms compared by one number: the difference first - second, or the ratio first / second."""

    first: str
    second: str
    estimate: Estimate
    p: float
    """The p-value, corrected by Holm over all pairs for this number."""
    smallest: float
    """The true difference that would have been detected with probability 0.8."""
    same: bool = False
    """Did both arms give the same results in every run, apart from time and memory?"""

    def differs(self, confidence: float) -> bool:
        """Can a difference be claimed? Never if the pair's interval contains no difference."""
        return self.p < 1 - confidence

    def to_json(self) -> dict[str, Any]:
        own = self.estimate
        found = {"mean": own.mean, "low": own.low, "high": own.high, "seeds": own.seeds, "p": own.p}
        found |= {"p_holm": self.p, "smallest_seen": self.smallest, "same": self.same}
        return {"first": self.first, "second": self.second, **found}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The results of one arm."""

    name: str
    runs: Sequence[Outcome]
    score: Estimate
    untrained: Estimate
    """The score of the finished runs before training."""
    gain: Estimate
    """The difference of the two, paired by seed and example."""

    @property
    def finished(self) -> list[Outcome]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def lost(self) -> list[Outcome]:
        """The runs that did not finish."""
        return [run for run in self.runs if run.status != "finished"]

    @property
    def collapsed(self) -> list[Outcome]:
        return [run for run in self.runs if run.collapsed]

    @property
    def is_whole(self) -> bool:
        return not self.lost

    def mean(self, name: str) -> float | None:
        """Return the mean over the finished runs of a measure, or of a numeric field of `Outcome`."""
        values = [run.measures.get(name, getattr(run, name, None)) for run in self.finished]
        known = [float(value) for value in values if value is not None]
        return fmean(known) if known else None

    def reached(self) -> int:
        """Return the number of runs that reached the target."""
        return sum(run.measures.get("steps to the target") is not None for run in self.finished)

    def to_json(self, measures: Mapping[str, Measure]) -> dict[str, Any]:
        names = ("steps", "tokens", "seconds", "spikes", "entropy_kept")
        return {
            "score": _plain(self.score),
            "untrained": _plain(self.untrained),
            "gain": _plain(self.gain),
            "finished": len(self.finished),
            "lost": [{"seed": run.seed, "reason": run.reason or "not made yet"} for run in self.lost],
            "collapsed": [run.seed for run in self.collapsed],
            "alarms": sum(run.alarms for run in self.runs),
            **{name: self.mean(name) for name in names},
            "measures": {name: self.mean(name) for name in measures},
            "reached_target": self.reached(),
        }


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The full analysis of a comparison. `verdict` puts it into sentences."""

    design: Design
    measure: str
    """The compared score: accuracy, score, loss ..., or check."""
    share: bool
    """True if each example is right or wrong, so that a run's score is its share of right examples."""
    arms: Sequence[Arm]
    pairs: Sequence[Pair]
    of_measures: Mapping[str, Sequence[Pair]]
    measures: Mapping[str, Measure]
    same_start: bool | None
    """Did all arms with the same seed give the same answers before training? None if the runs have no record."""
    same_prompts: bool | None
    """Did they draw the same prompts in the first step? None if the runs have no record."""
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lower(self) -> bool:
        return self.measure in LOWER_IS_BETTER

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def to_json(self) -> dict[str, Any]:
        return {
            "design": redact(self.design.record()),
            "measure": self.measure,
            "lower_is_better": self.lower,
            "arms": {arm.name: arm.to_json(self.measures) for arm in self.arms},
            "pairs": [pair.to_json() for pair in self.pairs],
            "measure_pairs": {name: [pair.to_json() for pair in pairs] for name, pairs in self.of_measures.items()},
            "measures": {name: measure.record() for name, measure in self.measures.items()},
            "same_start": self.same_start,
            "same_prompts": self.same_prompts,
            "conditions": dict(self.conditions),
            "runs": [run.to_json() for arm in self.arms for run in arm.runs],
        }


def analyse(
    design: Design, outcomes: Sequence[Outcome], *, measure: str, conditions: Mapping[str, Any] | None = None
) -> Analysis:
    """Compare the arms by their score, and by every measure that at least two of them have."""
    known = {**TO_TARGET, **COST, **STABILITY, **design.measures}
    measures = {name: how for name, how in known.items() if any(run.measures.get(name) is not None for run in outcomes)}
    share = _is_share(measure, outcomes)
    outcomes = [_with_collapse(run, measure, share) for run in outcomes]
    of = {arm: [run for run in outcomes if run.arm == arm] for arm in design.arms}
    scores = {arm: _scores(runs) for arm, runs in of.items()}
    arms = [_arm(arm, of[arm], design.confidence, share) for arm in design.arms]
    both = {
        (first, second): difference(scores[first], scores[second], design.confidence, share=share)
        for first, second in _pairs(design)
    }
    compared = {name: _of_measure(design, of, name, how) for name, how in measures.items()}
    return Analysis(
        design=design,
        measure=measure,
        share=share,
        arms=arms,
        pairs=[
            replace(pair, same=_are_same(of[pair.first], of[pair.second]))
            for pair in _corrected(both, design.confidence)
        ],
        of_measures={name: pairs for name, pairs in compared.items() if pairs},
        measures=measures,
        same_start=_same_start(design, outcomes),
        same_prompts=_same_prompts(design, outcomes),
        conditions=conditions or {},
    )


def _is_share(measure: str, outcomes: Sequence[Outcome]) -> bool:
    """Is the score a share of right examples? A check's score counts as one if every value is 0 or 1."""
    scores = {score for run in outcomes for of_run in (run.untrained, run.examples) for score in of_run.values()}
    return measure == "accuracy" or (measure == "check" and bool(scores) and scores <= {0.0, 1.0})


def _with_collapse(run: Outcome, measure: str, share: bool) -> Outcome:
    return replace(run, collapsed=has_collapsed(run.spans, share=share, lower=measure in LOWER_IS_BETTER))


def _arm(name: str, runs: Sequence[Outcome], confidence: float, share: bool) -> Arm:
    before, after = _before_and_after(runs)
    return Arm(
        name=name,
        runs=runs,
        score=level(_scores(runs), confidence, share=share),
        untrained=level(before, confidence, share=share),
        gain=difference(after, before, confidence, share=share),
    )


def _before_and_after(runs: Sequence[Outcome]) -> tuple[dict[int, Mapping[str, float]], dict[int, Mapping[str, float]]]:
    """Return the scores of finished runs before and after training. A run that lacks the scores per example on one of
    the sides counts as a single example on both."""
    before: dict[int, Mapping[str, float]] = {}
    after: dict[int, Mapping[str, float]] = {}
    for run in runs:
        if run.status != "finished" or run.score is None or run.baseline is None:
            continue
        both = run.untrained and run.examples
        before[run.seed] = run.untrained if both else {"": run.baseline}
        after[run.seed] = run.examples if both else {"": run.score}
    return before, after


def _plain(found: Estimate) -> dict[str, Any]:
    return {key: value for key, value in found._asdict().items() if key not in ("parts", "p")}


def _pairs(design: Design) -> list[tuple[str, str]]:
    return list(combinations(design.arms, 2))


def _scores(runs: Sequence[Outcome]) -> dict[int, Mapping[str, float]]:
    """Return scores per seed and example. A run without scores per example counts as a single example."""
    finished = [run for run in runs if run.status == "finished" and run.score is not None]
    return {run.seed: run.examples or {"": float(run.score or 0.0)} for run in finished}


def _are_same(first: Sequence[Outcome], second: Sequence[Outcome]) -> bool:
    """Did each run of one arm give the same results as the other arm's run with that seed? All must have finished."""
    both = list(zip(first, second, strict=True))
    finished = all(run.status == "finished" and run.score is not None for runs in both for run in runs)
    return bool(both) and finished and all(gave_the_same(*runs) for runs in both)


def _of_measure(design: Design, of: Mapping[str, Sequence[Outcome]], name: str, how: Measure) -> list[Pair]:
    """Compare the arms by one number of their finished runs: a maximum over the steps before a guard stopped a run is
    not one over all steps."""
    finished = {arm: [run for run in runs if run.status == "finished"] for arm, runs in of.items()}
    values = {arm: {run.seed: run.measures.get(name) for run in runs} for arm, runs in finished.items()}
    known = {arm: {seed: v for seed, v in found.items() if v is not None} for arm, found in values.items()}
    compare = ratio if how.as_ratio else paired
    found = {
        (first, second): compare(known[first], known[second], design.confidence)
        for first, second in _pairs(design)
        if known[first].keys() & known[second].keys()
    }
    if name in TO_TARGET:
        found = dict(_without_luck(found, {arm: len(of_arm) < len(of[arm]) for arm, of_arm in known.items()}))
    return _corrected(found, design.confidence, as_ratio=how.as_ratio)


def _without_luck(
    found: Mapping[tuple[str, str], Estimate], missed: Mapping[str, bool]
) -> Iterator[tuple[tuple[str, str], Estimate]]:
    """Withhold p where the faster arm missed the target, or lost its run, with some seed: only its lucky runs are
    compared."""
    for arms, one in found.items():
        faster = arms[0] if one.mean < 1 else arms[1]
        yield arms, one._replace(p=math.nan) if missed[faster] else one


def _corrected(found: Mapping[tuple[str, str], Estimate], confidence: float, *, as_ratio: bool = False) -> list[Pair]:
    p_values = [estimate.p for estimate in found.values()]
    adjusted, tests = holm(p_values), sum(not math.isnan(p) for p in p_values)
    return [
        Pair(
            first=first,
            second=second,
            estimate=estimate,
            p=p,
            smallest=smallest_seen(estimate, confidence, tests=max(1, tests), as_ratio=as_ratio),
        )
        for ((first, second), estimate), p in zip(found.items(), adjusted, strict=True)
    ]


def _same_start(design: Design, outcomes: Sequence[Outcome]) -> bool | None:
    starts = [{tuple(run.start) for run in outcomes if run.seed == seed and run.start} for seed in design.seeds]
    return all(len(found) <= 1 for found in starts) if any(starts) else None


def _same_prompts(design: Design, outcomes: Sequence[Outcome]) -> bool | None:
    """Did arms with the same seed draw the same prompts? A subset counts: an arm may draw fewer or replace some."""
    drawn = [[run.prompts for run in outcomes if run.seed == seed and run.prompts] for seed in design.seeds]
    both = [pair for found in drawn for pair in combinations(found, 2)]
    return all(a <= b or b <= a for a, b in both) if both else None
