"""Whether scores mean what they say: reliability, calibration errors and correlations, with intervals.

n predictions p of outcomes y, both numbers; of probabilities y is 0 or 1, or the probability that was found.

    ECE     sum_bins (n_bin / n) |mean y - mean p|            expected calibration error (Naeini et al. 2015)
    Brier   mean (p - y)^2                                    (Brier 1950)
    RMSE    sqrt(mean (p - y)^2)

The ECE of few predictions is above 0 even if each probability is right, because outcomes scatter: `by_chance` says how
far. Resampling draws from a fixed stream, so that the same results give the same interval, always.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.functional.intervals import Interval, mean_interval

BINS = 10
RESAMPLES = 1000


class ReliabilityBin(NamedTuple):
    """The predictions that lie close together, and what came of them."""

    n: int
    predicted: float
    """Their mean."""
    found: Interval
    """The mean of the outcomes."""


def reliability(
    predicted: Sequence[float],
    found: Sequence[float],
    confidence: float = 0.95,
    *,
    edges: Sequence[float] | None = None,
    bounds: tuple[float, float] | None = None,
) -> list[ReliabilityBin]:
    """The bins that hold anything, in ascending order.

    Between `edges` (the last one is part of the last bin), or, without edges, of equally many predictions each.
    `bounds` are those of the outcomes, where they have any.
    """
    groups: list[list[int]]
    if edges is None:
        order, bins = sorted(range(len(predicted)), key=lambda i: (predicted[i], i)), min(BINS, len(predicted))
        groups = [order[b * len(order) // bins : (b + 1) * len(order) // bins] for b in range(bins)]
    else:
        places = _bin_of(torch.tensor(predicted, dtype=torch.float64), edges).tolist()
        groups = [[i for i, place in enumerate(places) if place == b] for b in range(len(edges) - 1)]
    return [
        ReliabilityBin(
            len(group),
            fmean(predicted[i] for i in group),
            mean_interval([found[i] for i in group], confidence, bounds=bounds),
        )
        for group in groups
        if group
    ]


def even_edges(low: float, high: float, bins: int = BINS) -> list[float]:
    """The edges of bins of one width.

    >>> even_edges(0.5, 1.0, 2)
    [0.5, 0.75, 1.0]
    """
    return [low + (high - low) * b / bins for b in range(bins + 1)]


def expected_calibration_error(predicted: Tensor, found: Tensor, edges: Sequence[float]) -> Tensor:
    """`[...]` of `[..., n]`: see the head of this file.

    >>> p, y = torch.tensor([0.9, 0.7, 0.1], dtype=torch.float64), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    >>> round(float(expected_calibration_error(p, y, [0.0, 0.5, 1.0])), 4)
    0.1667
    """
    gaps = (found - predicted).new_zeros(*predicted.shape[:-1], len(edges) - 1)
    gaps = gaps.scatter_add(-1, _bin_of(predicted, edges), found - predicted)
    return gaps.abs().sum(dim=-1) / predicted.shape[-1]


def calibration_error(
    predicted: Sequence[float],
    found: Sequence[float],
    confidence: float = 0.95,
    *,
    edges: Sequence[float],
    clusters: Sequence[int] | None = None,
) -> Interval:
    """The ECE with the interval of a bootstrap over clusters, of those predictions that belong together.

    Reflected around the estimate (the basic bootstrap: resampling adds the scatter of a second sample, which would
    otherwise count as a worse calibration) and cut at 0 and 1.
    """
    if not predicted:
        return Interval(math.nan, 0.0, 1.0, 0)
    p, y = _column(predicted), _column(found)
    estimate = float(expected_calibration_error(p, y, edges))
    members = _members(clusters if clusters is not None else range(len(predicted)))
    stream = torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(RESAMPLES):
        choice = torch.randint(len(members), (len(members),), generator=stream).tolist()
        rows = torch.tensor([row for cluster in choice for row in members[cluster]])
        drawn.append(float(expected_calibration_error(p[rows], y[rows], edges)))
    low, high = _quantiles(drawn, confidence)
    low, high = max(0.0, min(estimate, 2 * estimate - high)), min(1.0, max(estimate, 2 * estimate - low))
    return Interval(estimate, low, high, len(members))


def by_chance(predicted: Sequence[float], edges: Sequence[float]) -> float:
    """The mean ECE if every probability were right: outcomes drawn from the predictions themselves (Broecker and Smith
    2007). An ECE near it is no sign of a wrong calibration."""
    if not predicted:
        return math.nan
    p, stream = _column(predicted), torch.Generator().manual_seed(0)
    drawn = torch.rand(RESAMPLES, len(p), generator=stream, dtype=torch.float64) < p
    return float(expected_calibration_error(p.expand(RESAMPLES, -1), drawn.double(), edges).mean())


def root_mean_square_error(predicted: Sequence[float], found: Sequence[float], confidence: float = 0.95) -> Interval:
    """The root of the mean squared error, and of both ends of its interval (Student's t over the squares)."""
    squares = mean_interval([(p - y) ** 2 for p, y in zip(predicted, found, strict=True)], confidence)
    mean, low, high = (math.sqrt(max(0.0, edge)) for edge in squares[:3])
    return Interval(mean, low, high, squares.n)


def pearson(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Interval:
    """The correlation, with Fisher's interval: atanh(r) has a standard deviation of 1 / sqrt(n - 3).

    >>> round(pearson([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 5.0]).mean, 4)
    0.9827
    """
    r = _correlation(_column(x), _column(y))
    return _fisher(r, len(x), 1.0, confidence)


def spearman(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Interval:
    """The correlation of the ranks, ties sharing theirs; the variance of its atanh is (1 + r^2 / 2) / (n - 3) (Bonett
    and Wright 2000).

    >>> round(spearman([1.0, 2.0, 3.0], [1.0, 4.0, 9.0]).mean, 4)
    1.0
    """
    r = _correlation(_ranks(x), _ranks(y))
    return _fisher(r, len(x), math.sqrt(1 + r * r / 2), confidence)


def _fisher(r: float, n: int, factor: float, confidence: float) -> Interval:
    if math.isnan(r) or n < 4:
        return Interval(r, -1.0, 1.0, n)
    z = NormalDist().inv_cdf((1 + confidence) / 2) * factor / math.sqrt(n - 3)
    middle = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return Interval(r, min(r, math.tanh(middle - z)), max(r, math.tanh(middle + z)), n)


def _correlation(x: Tensor, y: Tensor) -> float:
    """NaN where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = float(x.square().sum().sqrt() * y.square().sum().sqrt())
    return max(-1.0, min(1.0, float((x * y).sum()) / scale)) if scale > 0 else math.nan


def _ranks(values: Sequence[float]) -> Tensor:
    """From 1; equal values share the mean of theirs."""
    column = _column(values)
    below, upto = (torch.searchsorted(column.sort().values, column, right=right) for right in (False, True))
    return (below + 1 + upto).double() / 2


def _bin_of(x: Tensor, edges: Sequence[float]) -> Tensor:
    inner = torch.tensor(edges[1:-1], dtype=x.dtype)
    return torch.bucketize(x.contiguous(), inner, right=True)


def _members(clusters: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for row, cluster in enumerate(clusters):
        found.setdefault(cluster, []).append(row)
    return list(found.values())


def _quantiles(drawn: Sequence[float], confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = torch.tensor(drawn).quantile(torch.tensor([tail, 1 - tail])).tolist()
    return low, high


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
