"""Tests whether one arm is better than another, from a few seeds and the same held-out examples.

Scores are paired twice: by seed (same start, data order and random numbers) and by example. With d_se the difference
at seed s on example e, the half-width of the interval around the mean difference is

    sqrt(t(S - 1)^2 V_seeds + t(n - 1)^2 V_examples)    V_seeds    = var over seeds of the means over examples / S
                                                        V_examples = var over examples of the means over seeds / n

with a quantile of Student's t for each. The interval contains the t-interval over seeds, so it covers other seeds at
the stated level. V_examples extends it to other held-out examples. The interaction of a seed with an example counts in
both terms, so the interval is too wide rather than too narrow. If each seed holds out other examples, n counts all of
them. For shares, V_examples has the z^2 pseudo-pairs of `paired_interval`, so that equal answers do not prove equality.
p is the level at which the interval would just contain 0. For several pairs of arms it is corrected by Holm (1979).
If a number per run is the same with every seed, its spread is unknown rather than 0, because steps to a target and
shares of few examples come in coarse steps. Then there is neither an interval nor a p.

Limits: S seeds estimate V_seeds only roughly, so few seeds give wide intervals, and two almost useless ones. The method
assumes normally distributed seed means. Rare collapses violate this, so collapses are counted separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from posttrain.functional.intervals import normal_quantile, student_quantile

Example = str
Scores = Mapping[int, Mapping[Example, float]]
"""Seed -> example -> score."""
POWER = 0.8
"""Probability of detecting a difference of the stated size."""
_MOST_FREEDOM = 300
_ROUNDING = 1e-9
"""Differences that are equal up to this share of the compared numbers are equal."""


class Estimate(NamedTuple):
    """A mean over seeds with its interval. The limits are infinite for a single seed, or if nothing varies."""

    mean: float
    low: float
    high: float
    seeds: int
    parts: tuple[tuple[float, int], ...] = ()
    """(standard error, degrees of freedom) for the seeds and for the examples."""
    p: float = math.nan
    """The p-value for no difference, two-sided and uncorrected; NaN if it was not requested, or without an interval."""

    @property
    def has_interval(self) -> bool:
        """Is a spread known? Not from one seed, nor if every seed and every example gave the same number."""
        return self.seeds > 1 and any(error > 0 for error, _ in self.parts)

    def reach(self, probability: float) -> float:
        """Return the half-width of the interval whose upper end is exceeded with probability 1 - `probability`."""
        return math.hypot(*(student_quantile(probability, freedom) * error for error, freedom in self.parts))


def difference(first: Scores, second: Scores, confidence: float, *, share: bool = False) -> Estimate:
    """Return the interval of first - second over the seeds and examples that both have. With `share`, scores are in
    [0, 1], and the interval is clipped to [-1, 1]."""
    seeds = sorted(first.keys() & second.keys())
    differences = {s: {e: first[s][e] - second[s][e] for e in first[s].keys() & second[s].keys()} for s in seeds}
    size = max((abs(score) for side in (first, second) for of in side.values() for score in of.values()), default=0.0)
    found = with_p_value(estimate(differences, confidence, pseudo=(-1.0, 0.0, 0.0, 1.0) if share else (), size=size))
    if not share or not found.has_interval:
        return found
    return found._replace(low=max(-1.0, found.low), high=min(1.0, found.high))


def level(scores: Scores, confidence: float, *, share: bool = False) -> Estimate:
    """Return the interval of one arm's mean, clipped to [0, 1] for a share."""
    found = estimate(scores, confidence, pseudo=(0.0, 0.0, 1.0, 1.0) if share else ())
    if not share or not found.has_interval:
        return found
    return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))


def paired(first: Mapping[int, float], second: Mapping[int, float], confidence: float) -> Estimate:
    """Return Student's t interval of the differences over common seeds, for measures with one number per run."""
    seeds = sorted(first.keys() & second.keys())
    size = max(map(abs, (*first.values(), *second.values())), default=0.0)
    return with_p_value(estimate({s: {"": first[s] - second[s]} for s in seeds}, confidence, size=size))


def ratio(first: Mapping[int, float], second: Mapping[int, float], confidence: float) -> Estimate:
    """Return the geometric mean of the ratios first / second, with Student's t interval on their logarithms."""
    logs = [{seed: math.log(value) for seed, value in side.items() if value > 0} for side in (first, second)]
    found = paired(logs[0], logs[1], confidence)
    return found._replace(mean=_exp(found.mean), low=_exp(found.low), high=_exp(found.high))


def estimate(scores: Scores, confidence: float, *, pseudo: Sequence[float] = (), size: float = 0.0) -> Estimate:
    """Return the mean and its interval. `pseudo` are four values that share the weight of z^2 pseudo-examples. `size`
    is the largest number that the scores were computed from, as the measure of rounding errors."""
    known = {seed: of_seed for seed, of_seed in scores.items() if of_seed}
    seeds = len(known)
    if not seeds:
        return Estimate(math.nan, -math.inf, math.inf, 0)
    means = [math.fsum(of_seed.values()) / len(of_seed) for of_seed in known.values()]
    mean = math.fsum(means) / seeds
    if seeds == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    parts = [(math.sqrt(_variance(means, size) / seeds), seeds - 1)]
    values = _by_example(known)
    if len(values) > 1 and max(map(len, known.values())) > 1:
        spread = _example_variance(values, pseudo, normal_quantile(confidence), size)
        parts.append((math.sqrt(spread), min(len(values) - 1, _MOST_FREEDOM)))
    found = Estimate(mean, -math.inf, math.inf, seeds, tuple(parts))
    if not found.has_interval:
        return found
    half = found.reach((1 + confidence) / 2)
    return found._replace(low=mean - half, high=mean + half)


def with_p_value(found: Estimate) -> Estimate:
    """Add the p-value: the level at which the interval would just reach 0, found by bisection."""
    if not found.has_interval:
        return found
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if found.reach(1 - middle / 2) <= abs(found.mean) else (middle, high)
    return found._replace(p=high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests, to keep the chance of any false claim at that of one test (Holm 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [math.nan] * len(p_values), 0.0
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


def smallest_seen(found: Estimate, confidence: float, tests: int = 1, *, as_ratio: bool = False) -> float:
    """Return the true difference (or ratio) claimed with probability 0.8, when `tests` pairs are tested together."""
    if not found.has_interval:
        return math.inf
    least = found.reach(1 - (1 - confidence) / (2 * tests)) + found.reach(POWER)
    return _exp(least) if as_ratio else least


def _by_example(scores: Scores) -> list[float]:
    """Return the mean of each example over the seeds that have it: all seeds, or one if each seed holds out its own.
    An answer that one seed could not score does not split the example."""
    found: dict[Example, list[float]] = {}
    for of_seed in scores.values():
        for example, score in of_seed.items():
            found.setdefault(example, []).append(score)
    return [math.fsum(values) / len(values) for _, values in sorted(found.items())]


def _example_variance(values: Sequence[float], pseudo: Sequence[float], z: float, size: float) -> float:
    """Return the variance of the mean of these examples together with z^2 pseudo-examples."""
    if not pseudo and _are_equal(values, size):
        return 0.0
    weight = z**2 / len(pseudo) if pseudo else 0.0
    total = len(values) + weight * len(pseudo)
    middle = (math.fsum(values) + weight * math.fsum(pseudo)) / total
    squares = math.fsum((value - middle) ** 2 for value in values)
    squares += weight * math.fsum((value - middle) ** 2 for value in pseudo)
    return squares / total / (total - 1)


def _are_equal(values: Sequence[float], size: float) -> bool:
    """Are the values equal, up to rounding of numbers as large as `size`?"""
    return max(values) - min(values) <= _ROUNDING * max(size, *map(abs, values))


def _variance(values: Sequence[float], size: float) -> float:
    if _are_equal(values, size):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
