"""Which knob matters: what tells good trials from others, and where success turns into collapse."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from posttrain.lab.experiments.sweep.knobs import Knob
from posttrain.lab.experiments.sweep.study import TrialRecord

LEAST_TOLD = 8
"""Trials below which an importance is noise."""
BEST_SHARE = 0.25
SHUFFLES = 2000


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The split of one knob that tells collapsed trials from the others best."""

    key: str
    beyond: str
    """On which side they collapse: `above 0.003`, `= b`."""
    inside: tuple[float, float] | None
    """The last value that held and the first that did not, of numbers: the boundary is between them."""
    at: float | None
    """The boundary itself: their middle, on the knob's scale."""
    collapsed_beyond: int
    trials_beyond: int
    collapsed_within: int
    trials_within: int
    chance: float
    """How often as clear a split of any knob comes about when collapses are dealt out at random."""

    @property
    def sentence(self) -> str:
        says = (
            f"{self.key} {self.beyond}: {self.collapsed_beyond} of {self.trials_beyond} trials collapsed, elsewhere "
            f"{self.collapsed_within} of {self.trials_within}"
        )
        if self.chance < 0.05:
            return (
                f"This setting separates success from collapse: {says} (such a clear split occurs by chance in "
                f"{self.chance:.1%} of cases)."
            )
        return f"Collapses go together with {says}; but {self.chance:.0%} of random splits are as clear: not shown."

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence}


class _Split(NamedTuple):
    gain: float
    beyond: frozenset[int]
    label: str
    inside: tuple[float, float] | None
    at: float | None = None


def importance(knobs: Sequence[Knob], trials: Sequence[TrialRecord], sign: float = 1.0) -> dict[str, float]:
    """PED-ANOVA (arXiv:2304.10255), as shares: what of each setting tells the best quarter of the trials from all.

    A trial counts with its last score, however it ended, and one that collapsed before anything was measured as the
    worst: which quarter is best is all that is asked. `sign` is -1 where lower is better. Empty where trials are few.
    """
    told = [trial for trial in trials if trial.outcome in ("finished", "pruned", "collapsed") and trial.values]
    scores = [sign * trial.score for trial in told if trial.score is not None]
    if len(told) < LEAST_TOLD or len(set(scores)) < 2:
        return {}
    import optuna

    study, worst = optuna.create_study(direction="maximize"), min(scores) - 1.0
    for trial in told:
        value = worst if trial.score is None else sign * trial.score
        params = {knob.key: knob.stored(trial.values[knob.key]) for knob in knobs}
        ranges = {knob.key: knob.distribution() for knob in knobs}
        study.add_trial(optuna.create_trial(params=params, distributions=ranges, value=value))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(value) for key, value in found.items()} if sum(found.values()) > 0 else {}


def boundaries(
    knobs: Sequence[Knob], trials: Sequence[TrialRecord], *, seed: int = 0, shuffles: int = SHUFFLES
) -> tuple[Boundary, ...]:
    """For each knob, its best split into collapsed trials and others, the clearest first. Failed trials do not count.

    How clear: the fall of the Gini impurity. The best of many splits is clear by chance, too; `chance` is the share of
    random deals of the same number of collapses in which the best split of any knob is as clear.
    """
    told = [trial for trial in trials if trial.outcome in ("finished", "pruned", "collapsed") and trial.values]
    fell = [trial.outcome == "collapsed" for trial in told]
    if not any(fell) or all(fell):
        return ()
    cuts = {knob.key: list(_cuts(knob, told)) for knob in knobs}
    best = {key: split for key, places in cuts.items() if (split := _best(places, fell)) is not None}
    every = [place for places in cuts.values() for place in places]
    dice, dealt = random.Random(seed), list(fell)
    random_gains = []
    for _ in range(shuffles):
        dice.shuffle(dealt)
        split = _best(every, dealt)
        random_gains.append(split.gain if split else 0.0)
    found = [_boundary(key, split, fell, random_gains) for key, split in best.items()]
    return tuple(sorted(found, key=lambda boundary: (boundary.chance, -best[boundary.key].gain)))


def _cuts(knob: Knob, told: Sequence[TrialRecord]) -> list[_Split]:
    """Every way to cut the trials in two by this knob, without a gain yet."""
    if knob.kind == "choice":
        chosen = [trial.values[knob.key] for trial in told]
        sides = [(frozenset(i for i, v in enumerate(chosen) if v == c), f"= {c}") for c in knob.choices]
        return [_Split(0.0, side, label, None) for side, label in sides if 0 < len(side) < len(told)]
    order = sorted(range(len(told)), key=lambda i: told[i].values[knob.key])
    cuts = []
    for place in range(1, len(order)):
        low, high = (float(told[order[i]].values[knob.key]) for i in (place - 1, place))
        if low < high:
            middle = math.sqrt(low * high) if knob.kind == "log" else (low + high) / 2
            cuts.append(_Split(0.0, frozenset(order[place:]), f"above {middle:.3g}", (low, high), middle))
            cuts.append(_Split(0.0, frozenset(order[:place]), f"below {middle:.3g}", (low, high), middle))
    return cuts


def _best(cuts: Sequence[_Split], fell: Sequence[bool]) -> _Split | None:
    """The clearest cut, beyond which trials collapse more often than within."""
    total, n = sum(fell), len(fell)
    best: _Split | None = None
    for cut in cuts:
        size, hit = len(cut.beyond), sum(fell[i] for i in cut.beyond)
        if hit * n <= total * size:
            continue
        gain = _impurity(total, n) - size / n * _impurity(hit, size) - (n - size) / n * _impurity(total - hit, n - size)
        if best is None or gain > best.gain:
            best = cut._replace(gain=gain)
    return best


def _impurity(hit: int, n: int) -> float:
    share = hit / n
    return 2 * share * (1 - share)


def _boundary(key: str, split: _Split, fell: Sequence[bool], random_gains: Sequence[float]) -> Boundary:
    beyond = sum(fell[i] for i in split.beyond)
    as_clear = sum(gain >= split.gain - 1e-12 for gain in random_gains)
    return Boundary(
        key=key,
        beyond=split.label,
        inside=split.inside,
        at=split.at,
        collapsed_beyond=beyond,
        trials_beyond=len(split.beyond),
        collapsed_within=sum(fell) - beyond,
        trials_within=len(fell) - len(split.beyond),
        chance=(as_clear + 1) / (len(random_gains) + 1),
    )
