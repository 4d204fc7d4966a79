"""Confidence intervals for held-out results, with the reason for each choice:

- **One greedy answer per problem** is a proportion: `wilson`. It stays inside [0, 1] and has a width at 0 of n and at
  n of n, where the textbook interval p +- z * se shrinks to a point.
- **A mean over problems of shares in [0, 1]** (pass@k and majority@k, several answers per problem) is not a proportion
  of independent answers: answers to one problem resemble each other, so the problem is the unit. `mean_interval` with
  `bounds=(0, 1)` adds z^2 pseudo-problems, half at each bound, and takes the normal interval of all of them. For one
  answer per problem this is exactly Agresti-Coull (1998); with more answers it keeps the between-problem variance.
  Student's t and the bootstrap both return zero width when every problem was solved, the case that matters most here.
- **A mean of unbounded scores**: Student's t over problems, `mean_interval` without bounds. If all values are equal,
  the limits are infinite: a sample without spread does not tell how much further problems differ.
- **Before and after on the same problems**: `paired_interval`, on the differences. Much narrower than two separate
  intervals, because what makes a problem hard cancels. If all differences are equal, the values themselves show the
  scale: pseudo-pairs lie at their bounds.
- **A mean over the tokens of all texts** (loss per token, perplexity): the text is the unit, because its tokens belong
  together. `ratio_interval`, of the sum of sums over the sum of lengths. If all texts have the same quotient, they show
  no spread: pseudo-texts lie at the bounds, and without bounds the limits are infinite.
- **The AUC of a score for two classes**: see `posttrain.functional.auc`.

Nothing here is random: the same results always give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

EQUAL = 1e-12
"""Relative difference up to which two values are equal: differences of scores are rounded."""


class Interval(NamedTuple):
    """A mean over n problems with the limits of its confidence interval; NaN if there was nothing to average."""

    mean: float
    low: float
    high: float
    n: int

    def overlaps(self, other: Interval) -> bool:
        """Return true if the two intervals share a value. An interval without data overlaps with every interval."""
        return not (self.low > other.high or other.low > self.high)

    @property
    def finite(self) -> bool:
        """Are both limits numbers? Otherwise the values did not show their spread: there is no interval to print."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval (1927) of a proportion: one independent yes or no per problem.

    >>> interval = wilson(0, 10)
    >>> interval.mean, interval.low, round(interval.high, 4)
    (0.0, 0.0, 0.2775)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}; allowed: 0 <= successes <= n")
    z = normal_quantile(confidence)
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
    """Return the interval of a mean over problems, one value per problem.

    Without `bounds`: Student's t; the limits of a single value or of equal values are infinite, because they say
    nothing about spread. With `bounds` between which all values lie, see the top of this file: the interval contains
    the mean, stays inside the bounds and never has zero width.
    """
    z, n = normal_quantile(confidence), len(values)
    if bounds is None:
        return _student(values, confidence)
    low, high = bounds
    if any(not low <= value <= high for value in values):
        raise ValueError(f"values from {min(values)} to {max(values)}; allowed: between the bounds {low} and {high}")
    if n == 0:
        return Interval(math.nan, low, high, 0)
    return with_pseudo_values(values, [(low, z**2 / 2), (high, z**2 / 2)], z, bounds)


def paired_interval(
    before: Sequence[float],
    after: Sequence[float],
    confidence: float = 0.95,
    *,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Return the interval of the mean of `after - before`, paired by problem.

    Without `bounds`: Student's t of the differences; if all are equal, as with the bounds of the observed values, and
    infinite limits if those are equal, too. With `bounds` of the single values (0 and 1 for shares): z^2
    pseudo-pairs, a quarter in each corner of the two-by-two table, so that the width is never zero. (Agresti and Min
    2005 add two. For the one-sided changes that training makes, this covers 88 % instead of the stated 95 %.)
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before, {len(after)} after; each problem needs both")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if bounds is None:
        values = (*before, *after)
        if len(differences) < 2 or not _equal(differences, max(map(abs, values))) or _equal(values):
            return _student(differences, confidence)
        bounds = (min(values), max(values))
    reach = bounds[1] - bounds[0]
    if any(not bounds[0] <= value <= bounds[1] for value in (*before, *after)):
        raise ValueError(f"values outside the bounds {bounds[0]} and {bounds[1]}")
    if not differences:
        return Interval(math.nan, -reach, reach, 0)
    z = normal_quantile(confidence)
    corners = [(-reach, z**2 / 4), (0.0, z**2 / 2), (reach, z**2 / 4)]
    return with_pseudo_values(differences, corners, z, (-reach, reach))


def ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    confidence: float = 0.95,
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """Return the interval of sum(numerators) / sum(denominators), one of each per problem: a mean over tokens, by text.

    Linearised (Cochran 1977, 6.4), with the residuals of each problem from the ratio of the others (jackknife):
    (x - R y) / (mean(y) (1 - y / sum(y))). Long texts count more, so the effective number of texts is below n:
    sum(y)^2 / sum(y^2) (Kish 1965). This number minus one gives the degrees of freedom of Student's t. With equal
    denominators this is `mean_interval` of the quotients. `bounds` are the bounds of each quotient: with few texts
    Student's t reaches beyond the possible ratios, and is cut there.

    Equal quotients, such as those of texts whose tokens are all right, do not tell how much further texts differ. Then
    the interval is that of `mean_interval` with `bounds`, for the effective number of texts. If a bound is infinite,
    the limits are the bounds.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} numerators, {len(denominators)} denominators; each problem needs both")
    n, total, quantile = len(numerators), math.fsum(denominators), _two_sided(confidence)
    if n == 0 or total <= 0:
        return Interval(math.nan, *bounds, n)
    ratio = math.fsum(numerators) / total
    if max(denominators) >= total:
        return Interval(ratio, *bounds, n)
    carried = total**2 / math.fsum(y**2 for y in denominators)
    if all(_equal((x, ratio * y)) for x, y in zip(numerators, denominators, strict=True)):
        return _of_equal_ratios(ratio, n, carried, normal_quantile(confidence), bounds)
    residuals = [(x - ratio * y) / (total - y) for x, y in zip(numerators, denominators, strict=True)]
    middle = math.fsum(residuals) / n
    spread = math.sqrt(math.fsum((residual - middle) ** 2 for residual in residuals) * (n - 1) / n)
    half = student_quantile(quantile, max(1, math.floor(carried + 1e-9) - 1)) * spread
    return Interval(ratio, min(ratio, max(bounds[0], ratio - half)), max(ratio, min(bounds[1], ratio + half)), n)


def student_quantile(probability: float, freedom: int) -> float:
    """Return the t with P(T <= t) = probability, for an integer number of degrees of freedom, to about ten digits.

    For integers the distribution function is a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4). Beyond 300
    degrees the Cornish-Fisher expansion (26.7.5) is as accurate and costs nothing.
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


def with_pseudo_values(
    values: Sequence[float],
    pseudo: Sequence[tuple[float, float]],
    z: float,
    bounds: tuple[float, float],
    effect: float = 1.0,
) -> Interval:
    """Return the normal interval of values and weighted pseudo-values, cut at the bounds. The mean is of the values.

    `effect` is the design effect (Kish 1965): the variance of the mean relative to that of independent values. n values
    carry as much information as n / effect independent ones, so the weights of pseudo-values are multiplied by it.
    """
    n, total = len(values), len(values) + effect * sum(weight for _, weight in pseudo)
    middle = (math.fsum(values) + effect * sum(value * weight for value, weight in pseudo)) / total
    squares = math.fsum((value - middle) ** 2 for value in values)
    squares += effect * sum(weight * (value - middle) ** 2 for value, weight in pseudo)
    half = z * math.sqrt(effect * squares) / total
    mean = math.fsum(values) / n
    return Interval(mean, max(bounds[0], min(mean, middle - half)), min(bounds[1], max(mean, middle + half)), n)


def normal_quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(_two_sided(confidence))


def _student(values: Sequence[float], confidence: float) -> Interval:
    n = len(values)
    quantile = _two_sided(confidence)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    if _equal(values):
        return Interval(mean, -math.inf, math.inf, n)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_quantile(quantile, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def _of_equal_ratios(ratio: float, n: int, carried: float, z: float, bounds: tuple[float, float]) -> Interval:
    """Return the interval of n equal quotients, which carry as much as `carried` texts of equal length."""
    low, high = bounds
    if math.isfinite(low) and math.isfinite(high):
        pseudo = [(low, z**2 / 2), (high, z**2 / 2)]
        _, low, high, _ = with_pseudo_values([ratio] * n, pseudo, z, bounds, effect=n / carried)
    return Interval(ratio, min(ratio, low), max(ratio, high), n)


def _equal(values: Sequence[float], scale: float | None = None) -> bool:
    """Are the values equal up to the rounding of numbers of this size, by default their own?"""
    scale = max(map(abs, values)) if scale is None else scale
    return max(values) - min(values) <= EQUAL * scale


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
