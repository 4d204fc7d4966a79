"""Calibration of scores: reliability, calibration errors and correlations, with confidence intervals.

n predictions p of outcomes y, both numbers. If p is a probability, y is 0 or 1, or the observed probability.

    ECE     sum_bins (n_bin / n) |mean y - mean p|            expected calibration error (Naeini et al. 2015)
    Brier   mean (p - y)^2                                    (Brier 1950)
    RMSE    sqrt(mean (p - y)^2)

The ECE of few predictions is above 0 even if each probability is right, because outcomes scatter; `by_chance` returns
the expected ECE in this case. Random draws use a fixed seed, so the same results always give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, NamedTuple

import torch

from posttrain.functional.intervals import Interval, mean_interval, normal_quantile, student_quantile

if TYPE_CHECKING:
    from torch import Tensor

BINS = 10
DRAWS = 4000


class ReliabilityBin(NamedTuple):
    """Predictions of similar size, and their outcomes."""

    n: int
    predicted: float
    """Mean of the predictions."""
    found: Interval
    """Mean of the outcomes, with its interval."""


def reliability(
    predicted: Sequence[float],
    found: Sequence[float],
    confidence: float = 0.95,
    *,
    edges: Sequence[float] | None = None,
    bounds: tuple[float, float] | None = None,
) -> list[ReliabilityBin]:
    """Return the bins that are not empty, in ascending order.

    Bins lie between `edges` (the last edge belongs to the last bin). Without edges, each has the same number of
    predictions. `bounds` are the bounds of the outcomes, if they have any.
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
    """Return the edges of bins of equal width.

    >>> even_edges(0.5, 1.0, 2)
    [0.5, 0.75, 1.0]
    """
    return [low + (high - low) * b / bins for b in range(bins + 1)]


def calibration_error(
    predicted: Sequence[float],
    found: Sequence[float],
    confidence: float = 0.95,
    *,
    edges: Sequence[float],
    clusters: Sequence[int] | None = None,
) -> Interval:
    """Return the ECE E. Its interval covers the true ECE at least as often as stated. `clusters` group dependent rows.

    Each bin's gap is the true gap c_b plus a chance error d_b, so that

        E - sum_b |d_b|  <=  true ECE = sum_b |c_b|  <=  E - sum_b sign(c_b) d_b

    The upper limit needs the scatter of one sum. The lower limit counts all scatter, because chance alone makes E
    positive: `low` is 0 as long as chance explains E.

    >>> round(calibration_error([0.9, 0.7, 0.1], [1.0, 1.0, 0.0], edges=[0.0, 0.5, 1.0]).mean, 4)
    0.1667
    """
    if not predicted:
        return Interval(math.nan, 0.0, 1.0, 0)
    misses_CK, least_K = _misses(predicted, found, edges, clusters)
    gaps_K, n = misses_CK.sum(dim=0) / len(predicted), len(predicted)
    estimate = float(gaps_K.abs().sum())
    chance_D = (_normal_draws(len(gaps_K)) * _scatter(misses_CK, least_K) / n).abs().sum(dim=-1)
    signed = (misses_CK @ gaps_K.sign()).square().sum().maximum(least_K.sum()).sqrt() / n
    low = estimate - float(chance_D.quantile((1 + confidence) / 2))
    high = estimate + normal_quantile(confidence) * float(signed)
    return Interval(estimate, max(0.0, low), min(1.0, high), len(misses_CK))


@lru_cache(maxsize=4)
def _normal_draws(bins: int) -> Tensor:
    """Return `[D, K]`, the same normal numbers in every call."""
    return torch.randn(DRAWS, bins, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def by_chance(
    predicted: Sequence[float],
    found: Sequence[float],
    *,
    edges: Sequence[float],
    clusters: Sequence[int] | None = None,
) -> float:
    """The mean ECE if every probability were right and outcomes had this scatter: sqrt(2 / pi) sum_b sd(d_b)."""
    if not predicted:
        return math.nan
    return math.sqrt(2 / math.pi) * float(_scatter(*_misses(predicted, found, edges, clusters)).sum()) / len(predicted)


def root_mean_square_error(predicted: Sequence[float], found: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the RMSE with its interval: Student's t for the logarithm of the mean square m, whose variance is
    s^2 / (n m^2), halved for the root. Few squares underestimate s, so s is at least that of normal errors, sqrt(2) m.
    With few errors of heavier tails, coverage is below the stated one (for exponential errors 88 % at n = 10).
    """
    squares = [(p - y) ** 2 for p, y in zip(predicted, found, strict=True)]
    mean, low, high, n = mean_interval(squares, confidence)
    if n < 2 or mean == 0:
        return Interval(math.sqrt(mean) if n else math.nan, 0.0, 0.0 if n > 1 else math.inf, n)
    least = student_quantile((1 + confidence) / 2, n - 1) * math.sqrt(2 / n)
    factor, root = math.exp(max((high - low) / (2 * mean), least) / 2), math.sqrt(mean)
    return Interval(root, root / factor, root * factor, n)


def pearson(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return Pearson's correlation, with Fisher's interval: atanh(r) has a standard deviation of 1 / sqrt(n - 3).

    >>> round(pearson([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 5.0]).mean, 4)
    0.9827
    """
    r = _correlation(_column(x), _column(y))
    return _fisher(r, len(x), 1.0, confidence)


def spearman(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the correlation of the ranks; ties get the mean of their ranks. The variance of its atanh is
    (1 + r^2 / 2) / (n - 3) (Bonett and Wright 2000).

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
    """Pearson's correlation; NaN if x or y does not vary."""
    if len(x.unique()) < 2 or len(y.unique()) < 2:  # the mean of equal numbers is rounded, so x - mean is not always 0
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    scale = float(x.square().sum().sqrt() * y.square().sum().sqrt())
    return max(-1.0, min(1.0, float((x * y).sum()) / scale)) if scale > 0 else math.nan


def _ranks(values: Sequence[float]) -> Tensor:
    """Ranks from 1; equal values get the mean of their ranks."""
    column = _column(values)
    below, upto = (torch.searchsorted(column.sort().values, column, right=right) for right in (False, True))
    return (below + 1 + upto).double() / 2


def _bin_of(x: Tensor, edges: Sequence[float]) -> Tensor:
    inner = torch.tensor(edges[1:-1], dtype=x.dtype)
    return torch.bucketize(x.contiguous(), inner, right=True)


def _misses(
    predicted: Sequence[float], found: Sequence[float], edges: Sequence[float], clusters: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    """`[C, K]`: sum of y - p by cluster and bin. `[K]`: lower bound of the variance of its sum over the clusters.

    For outcomes of 0 or 1 the bound is sum p (1 - p): if all predictions are almost certain, observing no misses does
    not mean that there is no scatter. For targets that are shares no bound is known.
    """
    p, y = _column(predicted), _column(found)
    names = {name: place for place, name in enumerate(dict.fromkeys(clusters or range(len(p))))}
    rows = torch.tensor([names[name] for name in clusters or range(len(p))])
    place, bins = _bin_of(p, edges), len(edges) - 1
    misses_CK = torch.zeros(len(names), bins, dtype=p.dtype).index_put_((rows, place), y - p, accumulate=True)
    yes_or_no = bool(((y == 0) | (y == 1) | (y == p)).all())
    least = p * (1 - p) if yes_or_no else torch.zeros_like(p)
    return misses_CK, torch.zeros(bins, dtype=p.dtype).index_add_(0, place, least)


def _scatter(misses_CK: Tensor, least_K: Tensor) -> Tensor:
    """`[K]`: standard deviations of the sums. Rows of a cluster are added before they are squared."""
    return misses_CK.square().sum(dim=0).maximum(least_K).sqrt()


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
