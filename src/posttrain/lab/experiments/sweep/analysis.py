"""Analyses the trials: the importance of each knob, and the boundary between success and collapse."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from posttrain.lab.experiments.sweep.knobs import Knob
from posttrain.lab.experiments.sweep.study import TrialRecord

LEAST_TOLD = 8
"""Fewest trials for an importance. With fewer, it is noise."""
BEST_SHARE = 0.25
SHUFFLES = 2000


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The split of one knob's values that best separates collapsed trials from the others."""

    key: str
    beyond: str
    """The side on which trials collapse: `above 0.003`, `= b`."""
    inside: tuple[float, float] | None
    """For numbers, the tried values on both sides of the split: the boundary is between them."""
    at: float | None
    """The boundary itself: the middle of `inside`, on the knob's scale."""
    collapsed_beyond: int
    trials_beyond: int
    collapsed_within: int
    trials_within: int
    chance: float
    """Share of random assignments of the collapses in which some knob has a split as clear as this one."""

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
        return f"Collapses coincide with {says}. But {self.chance:.0%} of random splits are as clear: not shown."

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence}


class _Split(NamedTuple):
    gain: float
    beyond: frozenset[int]
    label: str
    inside: tuple[float, float] | None
    at: float | None = None


def importance(knobs: Sequence[Knob], trials: Sequence[TrialRecord], sign: float = 1.0) -> dict[str, float]:
    """Return the PED-ANOVA importance (arXiv:2304.10255) of each setting, as shares: how much it separates the best
    quarter of the trials from all.

    A trial counts with its last score, however it ended. A trial that collapsed before its first score counts as the
    worst, because only the best quarter matters. `sign` is -1 if lower is better. Empty if there are too few trials.
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
    """Return, for each knob, its best split into collapsed and other trials, clearest first. Ignores failed trials.

    Clarity is the decrease in Gini impurity. The best of many splits can be clear by chance. `chance` is the share of
    random assignments of the same number of collapses in which the best split of any knob is as clear.
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
    """Return all ways to split the trials in two by this knob. Their gain is not computed yet."""
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
    """Return the clearest split whose `beyond` side collapses more often than average."""
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
