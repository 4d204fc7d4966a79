"""Detection of a rise of a share: the one-sided cumulative sum (CUSUM) for binary observations, and when it began.

    llr(x)  = log(p1 / p0)                    for a yes
              log((1 - p1) / (1 - p0))        for a no
    S_t     = max(0, S_{t-1} + sum of llr over the observations of step t)

p0 is the share when nothing is wrong, p1 the share to detect. S drifts to 0 under p0. Under p1 it grows by the
Kullback-Leibler divergence of p1 from p0 per observation. An alarm is S >= h. The estimated time of the change is the
step at which the last rise from 0 began (E. S. Page, Biometrika 41, 1954).

Detection of a drop of a series: the last window of measurements against the best earlier one, in standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Cusum:
    """The state of the cumulative sum after a step."""

    value: float = 0.0
    since: int | None = None
    """The step at which the current rise from 0 began; None at 0."""

    def after(self, step: int, yes: int, total: int, *, baseline: float, target: float) -> Cusum:
        """Return the sum after `yes` of `total` observations in `step`.

        >>> Cusum().after(7, 1, 2, baseline=0.1, target=0.4)     # log(0.4 / 0.1) + log(0.6 / 0.9)
        Cusum(value=0.9808292530117262, since=7)
        >>> Cusum().after(7, 0, 2, baseline=0.1, target=0.4)
        Cusum(value=0.0, since=None)
        """
        value = self.value + log_likelihood_ratio(yes, total, baseline=baseline, target=target)
        if value <= 0:
            return Cusum()
        return Cusum(value=value, since=step if self.since is None else self.since)


def log_likelihood_ratio(yes: int, total: int, *, baseline: float, target: float) -> float:
    """Log-likelihood ratio of `yes` out of `total` under the share `target` to the share `baseline`, in nats."""
    assert 0 < baseline < 1, "a share of 0 or 1 makes the first surprise infinitely surprising"
    assert 0 < target < 1, "a share of 0 or 1 makes the first surprise infinitely surprising"
    return yes * math.log(target / baseline) + (total - yes) * math.log((1 - target) / (1 - baseline))


def with_odds_times(share: float, ratio: float) -> float:
    """The share whose odds are `ratio` times those of `share`: about share * ratio if small, and always below 1.

    >>> round(with_odds_times(0.01, 5), 4), round(with_odds_times(0.5, 5), 4)
    (0.0481, 0.8333)
    """
    odds = ratio * share / (1 - share)
    return odds / (1 + odds)


class Drop(NamedTuple):
    """The last window of a series, compared with its best earlier window."""

    before: float
    """Mean of the best earlier window."""
    now: float
    """Mean of the last window."""
    z: float
    """(before - now) / standard error of the difference; infinite if both means are certain."""
    best: int
    """Index at which the best earlier window begins."""


def largest_drop(measured: Sequence[tuple[float, float]], window: int) -> Drop | None:
    """Return the largest drop in a series of (score, standard error); None until two disjoint windows fit.

    Measurements are treated as independent. Measurements on the same prompts are positively correlated, so a drop is
    more certain than z says. The best of many windows is too good by chance, hence a limit of 4 rather than 2.

    >>> drop = largest_drop([(0.5, 0.1), (0.7, 0.1), (0.6, 0.1), (0.2, 0.1)], 2)     # 0.65 would share a measurement
    >>> drop.before, drop.now, round(drop.z, 6), drop.best
    (0.6, 0.4, 2.0, 0)
    """
    if len(measured) < 2 * window:
        return None
    start = len(measured) - window
    now, now_error = _window(measured, start, window)
    earlier = [_window(measured, first, window) for first in range(start - window + 1)]
    best = max(range(len(earlier)), key=lambda first: earlier[first][0])
    before, before_error = earlier[best]
    error, change = math.hypot(before_error, now_error), before - now
    z = change / error if error > 0 else math.copysign(math.inf, change) if change else 0.0
    return Drop(before=before, now=now, z=z, best=best)


def _window(measured: Sequence[tuple[float, float]], first: int, window: int) -> tuple[float, float]:
    """Return the mean of a window and its standard error."""
    taken = measured[first : first + window]
    return (
        math.fsum(score for score, _ in taken) / window,
        math.sqrt(math.fsum(error * error for _, error in taken)) / window,
    )
