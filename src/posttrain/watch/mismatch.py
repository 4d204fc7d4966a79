"""Do engine and trainer mean the same by a log-probability? The number of a step, its drift, and when it is too large.

Only tokens that the present weights drew are compared (`mismatch/fresh_*`): an older token differs because the policy
has moved since, which is no fault. A step is **high** whose 99th percentile (of fewer than fifty tokens: whose mean) is
above what rounding explains in this precision, or whose mean is three times that of the first steps. Three high steps
in a row are an alarm: one odd token is below the percentile, and one odd step is not a row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from posttrain.watch.bisection import Cause
from posttrain.watch.records import Alarm, Step
from posttrain.watch.rounding import LEVELS, Level

STEPS = 5
"""First steps that later ones are compared with, and last ones that are called now."""
IN_A_ROW = 3
GROWN = 3.0
"""Times the mean of the first steps."""
NO_DIFFERENCE = 1e-7
"""Nats that a drift is measured from where there is less: float32 has no finer ones."""


class Mismatch:
    """Implements `StepAlarm`; `examine` finds the cause, before the update of the step that may set it off."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.first: list[float] = []
        """Means of the first steps that were not high."""
        self.last: list[float] = []
        self.since: int | None = None
        """The first of the high steps in a row."""
        self.row = 0
        self.told = False
        self.cause: Cause | None = None

    @staticmethod
    def of(dtype: torch.dtype, *, temperature: float = 1.0) -> Mismatch:
        """For an engine that computes in this precision and draws at this temperature."""
        return Mismatch(LEVELS[dtype].at(temperature))

    @property
    def suspects(self) -> bool:
        """May the next step be the last one of a row?"""
        return self.row >= IN_A_ROW - 1 and not self.told

    def before_update(self, examine: Callable[[Level], Cause]) -> None:
        """Have the rows of a step examined if it may set off the alarm."""
        self.cause = examine(self.level) if self.suspects else None

    def observe(self, step: Step) -> Alarm | None:
        mean, p99 = (step.metrics.get(f"mismatch/fresh_{name}", math.nan) for name in ("mean", "p99"))
        if not math.isfinite(mean):
            return None  # the present weights drew nothing of it
        high = (p99 if math.isfinite(p99) else mean) > self.level.p99 or self._has_grown(mean)
        self._add(mean, high)
        self.row = self.row + 1 if high else 0
        self.since = (self.since or step.number) if high else None
        if self.row < IN_A_ROW or self.since is None:
            return None
        if self.cause is not None and self.cause.kind == "none":  # asked again, engines and trainer agree
            self.row, self.since = 0, None
            return None
        self.told = True
        return self._alarm(step.number, self.since, mean, p99)

    def _alarm(self, number: int, since: int, mean: float, p99: float) -> Alarm:
        cause = self.cause or Cause(kind="unknown", text="nobody was asked for its cause")
        start = f"; before, the mean was {statistics.median(self.first):.2g}" if self.first else ""
        share = f" and one in a hundred by more than {p99:.2g}" if math.isfinite(p99) else ""
        return Alarm(
            kind="mismatch",
            step=number,
            change_point=since,
            message=f"since step {since} the engine's log-probabilities differ from the trainer's by {mean:.2g} "
            f"nats on average{share} (rounding explains {self.level.p99:g}{start}). Cause: {cause.kind}: "
            f"{cause.text}",
            evidence={
                "cause": cause.kind,
                "mean": mean,
                "p99": p99,
                "level": self.level.p99,
                "before": statistics.median(self.first) if self.first else None,
                **cause.evidence,
            },
            fix=cause.fix,
        )

    def _add(self, mean: float, high: bool) -> None:
        if len(self.first) < STEPS and not high:
            self.first.append(mean)
        self.last = [*self.last, mean][-STEPS:]

    def _has_grown(self, mean: float) -> bool:
        known = len(self.first) == STEPS
        return known and mean > max(self.level.mean, GROWN * statistics.median(self.first))

    def metrics(self) -> dict[str, float]:
        """`mismatch/drift`: how many times the median of the last five means is that of the first five."""
        if len(self.first) < STEPS:
            return {}
        now, start = (max(NO_DIFFERENCE, statistics.median(means)) for means in (self.last, self.first))
        return {"mismatch/drift": now / start}

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("first", "last", "since", "row", "told")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.first, self.last = list(state["first"]), list(state["last"])
        self.since, self.row, self.told = state["since"], state["row"], state["told"]
