"""AUC: the probability that a positive scores above a negative (ties count 1/2), with confidence intervals.

The component of a positive is the share of negatives below it, that of a negative the share of positives above it
(DeLong, DeLong and Clarke-Pearson 1988). Both classes are samples, so the distances of their two interval limits from
the mean are squared and added, separately for each limit (Zou and Donner 2008). The two intervals are intervals of
shares, with pseudo-values as in `mean_interval` with bounds, so they have a width even if the classes are separable.

Rows that belong together, such as the steps of one answer, form a cluster: their components are added before they are
squared, within a class and across both (Obuchowski 1997).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

from posttrain.functional.intervals import Interval, normal_quantile, with_pseudo_values

Classes = tuple[Sequence[float], Sequence[float]]
"""The scores of the positives and of the negatives."""
Clusters = tuple[Sequence[int], Sequence[int]]
"""The cluster of each positive and of each negative."""
Pseudo = list[tuple[float, float]]


def auc_interval(
    positives: Sequence[float],
    negatives: Sequence[float],
    confidence: float = 0.95,
    *,
    clusters: Clusters | None = None,
) -> Interval:
    """Return the confidence interval of the AUC.

    >>> auc_interval([2.0, 3.0], [1.0, 2.0]).mean
    0.875
    """
    weight = normal_quantile(confidence) ** 2
    pseudo = [(0.0, weight / 2), (1.0, weight / 2)]
    return _both_sides(_components(positives, negatives), clusters, pseudo, (0.0, 1.0), confidence)


def auc_change(
    before: Classes, after: Classes, confidence: float = 0.95, *, clusters: Clusters | None = None
) -> Interval:
    """Return the interval of AUC after - AUC before, for the same positives and negatives, scored twice.

    The interval is computed from the changes of the components, with the pseudo-values of `paired_interval`.
    """
    if [len(scores) for scores in before] != [len(scores) for scores in after]:
        raise ValueError(
            "different numbers of positives or negatives before and after; pass the same ones, scored twice"
        )
    sides = zip(_components(*before), _components(*after), strict=True)
    moved = [[new - old for old, new in zip(*side, strict=True)] for side in sides]
    weight = normal_quantile(confidence) ** 2
    pseudo = [(-1.0, weight / 4), (0.0, weight / 2), (1.0, weight / 4)]
    return _both_sides(moved, clusters, pseudo, (-1.0, 1.0), confidence)


def _components(positives: Sequence[float], negatives: Sequence[float]) -> list[list[float]]:
    """Return the share of negatives below each positive and the share of positives above each negative; ties 1/2."""

    def below(value: float, ordered: Sequence[float]) -> float:
        return (bisect_left(ordered, value) + bisect_right(ordered, value)) / (2 * len(ordered))

    if not positives or not negatives:
        return [[], []]
    low, high = sorted(negatives), sorted(positives)
    return [[below(value, low) for value in positives], [1 - below(value, high) for value in negatives]]


def _both_sides(
    sides: Sequence[Sequence[float]],
    clusters: Clusters | None,
    pseudo: Pseudo,
    bounds: tuple[float, float],
    confidence: float,
) -> Interval:
    """Combine the intervals of the two classes and their correlation into the interval of one estimate."""
    n = sum(len(side) for side in sides)
    if not n:
        return Interval(math.nan, *bounds, 0)
    if clusters is None:
        first = len(sides[0])
        clusters = range(first), range(first, n)
    z, sums = normal_quantile(confidence), [_sums(*side) for side in zip(sides, clusters, strict=True)]
    parts = [
        with_pseudo_values(side, pseudo, z, bounds, _effect(side, owners, of_clusters))
        for side, owners, of_clusters in zip(sides, clusters, sums, strict=True)
    ]
    shared, mean = _correlation(*sums), parts[0].mean

    def together(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x**2 + y**2 + 2 * shared * x * y))

    low = mean - together(*(part.mean - part.low for part in parts))
    high = mean + together(*(part.high - part.mean for part in parts))
    return Interval(mean, max(bounds[0], low), min(bounds[1], high), n)


def _sums(side: Sequence[float], owners: Sequence[int]) -> dict[int, float]:
    """Return, for each cluster, the sum of the distances of its components from the overall mean."""
    mean, found = math.fsum(side) / len(side), dict.fromkeys(owners, 0.0)
    for value, owner in zip(side, owners, strict=True):
        found[owner] += value - mean
    return found


def _effect(side: Sequence[float], owners: Sequence[int], sums: dict[int, float]) -> float:
    """Return the design effect: squares of the cluster sums / squares of the rows, at least 1. If the rows do not
    differ, their correlation is unknown, and the result is its upper bound, sum(size^2) / n."""
    mean = math.fsum(side) / len(side)
    alone = math.fsum((value - mean) ** 2 for value in side)
    if alone < 1e-12:
        return sum(size**2 for size in Counter(owners).values()) / len(side)
    return max(1.0, math.fsum(value**2 for value in sums.values()) / alone)


def _correlation(x: dict[int, float], y: dict[int, float]) -> float:
    """Correlation of the two classes over the clusters that have both; 0 if no cluster has."""
    scale = math.sqrt(math.fsum(a**2 for a in x.values()) * math.fsum(b**2 for b in y.values()))
    return math.fsum(a * y[owner] for owner, a in x.items() if owner in y) / scale if scale > 1e-12 else 0.0
