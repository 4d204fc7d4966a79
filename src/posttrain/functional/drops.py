"""Has a measured series fallen? The last window of measurements against the best earlier one, in standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Drop(NamedTuple):
    """The last window of a series beside its best earlier one."""

    before: float
    """Mean of the best earlier window."""
    now: float
    """Mean of the last window."""
    z: float
    """(before - now) / standard error of the difference; infinite where nothing is uncertain."""
    best: int
    """Where the best earlier window begins."""


def largest_drop(measured: Sequence[tuple[float, float]], window: int) -> Drop | None:
    """Of (score, its standard error) in their order; None until two windows fit side by side.

    Measurements are taken for independent. Those on the same prompts are positively related, so that a drop is more
    certain than z says. The best of many windows is too good by chance: hence a limit of 4 rather than 2.

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
    """Mean and its standard error."""
    taken = measured[first : first + window]
    return (
        math.fsum(score for score, _ in taken) / window,
        math.sqrt(math.fsum(error * error for _, error in taken)) / window,
    )
