"""The record of an observation, and a helper that several observations share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Note(NamedTuple):
    """One observation: the title states it, and the text explains it and says what to change."""

    level: Literal["ok", "info", "warn"]
    title: str
    text: str


def fifths(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of the first fifth and the mean of the last fifth of the points."""
    size = max(1, len(points) // 5)
    values = [value for _, value in points]
    return statistics.fmean(values[:size]), statistics.fmean(values[-size:])
