"""Confidence intervals for held-out results. Which one, and why:

- **One greedy answer per problem** is a proportion: `wilson`. It stays inside [0, 1] and has a width at 0 of n and at
  n of n, where the textbook interval p +- z * se shrinks to a point.
- **A mean over problems of shares in [0, 1]** (pass@k and majority@k, several answers per problem) is not a proportion
  of independent answers: answers to one problem resemble each other, so the problem is the unit. `mean_interval` with
  `bounds=(0, 1)` adds z^2 pseudo-problems, half at each bound, and takes the normal interval of all of them. For one
  answer per problem this is exactly Agresti-Coull (1998); with more answers it keeps the between-problem variance.
  Student's t and the bootstrap both return zero width when every problem was solved, the case that matters most here.
- **A mean of unbounded scores**: Student's t over problems, `mean_interval` without bounds.
- **Before and after on the same problems**: `paired_interval`, on the differences. Much narrower than two separate
  intervals, because what makes a problem hard cancels.
- **A mean over the tokens of all texts** (loss per token, perplexity): the text is the unit, because its tokens belong
  together. `ratio_interval`, of the sum of sums over the sum of lengths.
- **How well a score tells two classes apart** (AUC): `auc_interval`, and `auc_change` before and after.

Nothing here is random: the same results give the same interval, always.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """A mean over n problems with the limits of its confidence interval; NaN when there was nothing to average."""

    mean: float
    low: float
    high: float
    n: int

    def overlaps(self, other: Interval) -> bool:
        """Whether the two share a value. An interval without data overlaps with everything."""
        return not (self.low > other.high or other.low > self.high)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval (1927) of a proportion: one independent yes or no per problem.

    >>> interval = wilson(0, 10)
    >>> interval.mean, interval.low, round(interval.high, 4)
    (0.0, 0.0, 0.2775)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}; allowed: 0 <= successes <= n")
    z = _normal_quantile(confidence)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    share = successes / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return Interval(share, low, high, n)


def mean_interval(
    values: Sequence[float], confidence: float = 0.95, *, bounds: tuple[float, float] | None = None
) -> Interval:
    """Interval of a mean over problems, one value per problem.

    Without `bounds`: Student's t; infinite limits for a single value, because one problem says nothing about spread.
    With `bounds`: values known to lie between them, see the head of this file; the interval contains the mean, stays
    inside the bounds and never has zero width.
    """
    z, n = _normal_quantile(confidence), len(values)
    if bounds is None:
        return _student(values, confidence)
    low, high = bounds
    if any(not low <= value <= high for value in values):
        raise ValueError(f"values from {min(values)} to {max(values)}; allowed: between the bounds {low} and {high}")
    if n == 0:
        return Interval(math.nan, low, high, 0)
    return _with_pseudo_values(values, [(low, z**2 / 2), (high, z**2 / 2)], z, bounds)


def paired_interval(
    before: Sequence[float],
    after: Sequence[float],
    confidence: float = 0.95,
    *,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Interval of the mean of `after - before`, problem by problem.

    Without `bounds`: Student's t of the differences. With `bounds` of the single values (0 and 1 for shares): z^2
    pseudo-pairs, a quarter in each corner of the two-by-two table, so that the width is never zero. (Agresti and Min
    2005 add two; with one-sided changes, which is what training gives, that covers 88 % where 95 % is stated.)
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before, {len(after)} after; pairs are of the same problem")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if bounds is None:
        return _student(differences, confidence)
    reach = bounds[1] - bounds[0]
    if any(not bounds[0] <= value <= bounds[1] for value in (*before, *after)):
        raise ValueError(f"values outside the bounds {bounds[0]} and {bounds[1]}")
    if not differences:
        return Interval(math.nan, -reach, reach, 0)
    z = _normal_quantile(confidence)
    corners = [(-reach, z**2 / 4), (0.0, z**2 / 2), (reach, z**2 / 4)]
    return _with_pseudo_values(differences, corners, z, (-reach, reach))


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95) -> Interval:
    """Interval of sum(numerators) / sum(denominators), one of each per problem: a mean over tokens, clustered by text.

    Linearised (Cochran 1977, 6.4): Student's t of the residuals (x - R y) / mean(y), whose mean is 0. With equal
    denominators this is `mean_interval` of the quotients.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} numerators, {len(denominators)} denominators; there is one of each")
    n, total = len(numerators), math.fsum(denominators)
    if n == 0 or total <= 0:
        return Interval(math.nan, -math.inf, math.inf, n)
    ratio = math.fsum(numerators) / total
    residuals = [(x - ratio * y) * n / total for x, y in zip(numerators, denominators, strict=True)]
    around = _student(residuals, confidence)
    half = (around.high - around.low) / 2
    return Interval(ratio, ratio - half, ratio + half, n)


def auc_interval(positives: Sequence[float], negatives: Sequence[float], confidence: float = 0.95) -> Interval:
    """Interval of the probability that a positive scores above a negative, ties 1/2 (Mann-Whitney).

    Each positive has its share of negatives below it, and each negative its share of positives above it (the
    components of DeLong, DeLong and Clarke-Pearson 1988). Both sides sample, so the distances of their two intervals
    from the mean are squared and added, limit by limit (Zou and Donner 2008); like `mean_interval` with bounds, which
    gives the two, it has a width where the classes are separated completely.

    >>> auc_interval([2.0, 3.0], [1.0, 2.0]).mean
    0.875
    """
    parts = _auc_components(positives, negatives)
    return _both_sides([mean_interval(part, confidence, bounds=(0.0, 1.0)) for part in parts], (0.0, 1.0))


def auc_change(
    before: tuple[Sequence[float], Sequence[float]],
    after: tuple[Sequence[float], Sequence[float]],
    confidence: float = 0.95,
) -> Interval:
    """Interval of AUC after - AUC before for the same (positives, negatives), scored twice."""
    parts = zip(_auc_components(*before), _auc_components(*after), strict=True)
    return _both_sides([paired_interval(*part, confidence, bounds=(0.0, 1.0)) for part in parts], (-1.0, 1.0))


def student_quantile(probability: float, freedom: int) -> float:
    """The t with P(T <= t) = probability, for an integer number of degrees of freedom, to about ten digits.

    The distribution function is a finite sum for integers (Abramowitz and Stegun 26.7.3 and 26.7.4); beyond 300
    degrees the Cornish-Fisher expansion (26.7.5) is as good and costs nothing.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"probability {probability}, freedom {freedom}; allowed: 0 < probability < 1, freedom >= 1")
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    if freedom > 300:
        return _cornish_fisher(NormalDist().inv_cdf(probability), freedom)
    low, high = 0.0, 1.0
    while 0.5 + _student_half_mass(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _student_half_mass(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _auc_components(positives: Sequence[float], negatives: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of each positive the share of negatives below it, of each negative the share of positives above it; ties 1/2."""

    def below(value: float, ordered: Sequence[float]) -> float:
        return (bisect_left(ordered, value) + bisect_right(ordered, value)) / (2 * len(ordered))

    if not positives or not negatives:
        return [], []
    low, high = sorted(negatives), sorted(positives)
    return [below(value, low) for value in positives], [1 - below(value, high) for value in negatives]


def _both_sides(parts: Sequence[Interval], bounds: tuple[float, float]) -> Interval:
    """One estimate, and its interval from those of its two independent sources of chance."""
    mean, n = parts[0].mean, sum(part.n for part in parts)
    if math.isnan(mean):
        return Interval(mean, *bounds, n)
    low = mean - math.hypot(*(mean - part.low for part in parts))
    high = mean + math.hypot(*(part.high - mean for part in parts))
    return Interval(mean, max(bounds[0], low), min(bounds[1], high), n)


def _student(values: Sequence[float], confidence: float) -> Interval:
    n = len(values)
    quantile = _two_sided(confidence)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_quantile(quantile, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def _with_pseudo_values(
    values: Sequence[float], pseudo: Sequence[tuple[float, float]], z: float, bounds: tuple[float, float]
) -> Interval:
    """Normal interval of values and weighted pseudo-values together, cut at the bounds; the mean is of the values."""
    n, total = len(values), len(values) + sum(weight for _, weight in pseudo)
    middle = (math.fsum(values) + sum(value * weight for value, weight in pseudo)) / total
    squares = math.fsum((value - middle) ** 2 for value in values)
    squares += sum(weight * (value - middle) ** 2 for value, weight in pseudo)
    half = z * math.sqrt(squares) / total
    mean = math.fsum(values) / n
    return Interval(mean, max(bounds[0], min(mean, middle - half)), min(bounds[1], max(mean, middle + half)), n)


def _normal_quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(_two_sided(confidence))


def _two_sided(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}; allowed: between 0 and 1, usually 0.95")
    return (1 + confidence) / 2


def _student_half_mass(t: float, freedom: int) -> float:
    """P(0 < T < t)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = freedom % 2 == 1
    term = cos if odd else 1.0
    total = 0.0
    for j in range(1, (freedom + 1) // 2 if odd else freedom // 2 + 1):
        total += term
        term *= cos**2 * (2 * j / (2 * j + 1) if odd else (2 * j - 1) / (2 * j))
    return (angle + sin * total) / math.pi if odd else sin * total / 2


def _cornish_fisher(z: float, freedom: int) -> float:
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
