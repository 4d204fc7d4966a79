"""A number at the start of a run and now: the means over its first and its last steps, and their standard error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from posttrain.watch.records import Movement

SURE = 2.0
"""Number of standard errors above which a training reward counts as moved."""


class Course:
    """The first `size` values of a run, and the last `size` values after them.

    If a resumed run has a larger `size`, the first values stay as few as they were: those after them were dropped, and
    later ones show no start.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.first: list[float] = []
        self.last: list[float] = []

    def add(self, value: float) -> None:
        """Add a value. Values that are not finite are left out."""
        if not math.isfinite(value):
            return
        if not self.last and len(self.first) < self.size:
            self.first.append(value)
        else:
            self.last = [*self.last, value][-self.size :]

    @property
    def is_known(self) -> bool:
        return len(self.last) == self.size

    @property
    def start(self) -> float:
        return statistics.fmean(self.first)

    @property
    def now(self) -> float:
        return statistics.fmean(self.last)

    @property
    def error(self) -> float:
        """Standard error of `now - start` for independent steps; 0 if nothing varies or `size` is 1. One value alone
        is taken to vary as the others do."""
        sides = (self.first, self.last)
        spread = max((statistics.variance(values) for values in sides if len(values) > 1), default=0.0)
        return math.sqrt(sum((statistics.variance(one) if len(one) > 1 else spread) / len(one) for one in sides))

    def movement(self) -> Movement:
        if not self.is_known:
            return "unknown"
        change = self.now - self.start
        if abs(change) <= max(SURE * self.error, 1e-9):
            return "flat"
        return "rose" if change > 0 else "fell"

    def state(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the values, divided by the present `size`."""
        values = [*state["first"], *state["last"]]
        has_gap = len(state["last"]) >= len(state["first"])  # values between the two may have been dropped
        start = min(len(state["first"]), self.size) if has_gap else self.size
        self.first, self.last = values[:start], values[start:][-self.size :]
