"""The alarm about different log-probabilities of engine and trainer, and the metric of their drift.

It compares only tokens that the present weights drew (`mismatch/fresh_*`): an older token differs because the policy
has moved since, which is no fault. A step is **high** if its 99th percentile (with fewer than fifty tokens, its mean)
is above what rounding explains in this precision, or if its mean is three times the mean of the first steps. Three high
steps in a row set off the alarm. So neither one odd token nor one odd step does.
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
"""Number of first steps that are compared with the same number of last steps."""
IN_A_ROW = 3
GROWN = 3.0
"""A mean above this multiple of the first steps' mean is high."""
NO_DIFFERENCE = 1e-7
"""Smallest difference in nats from which a drift is measured, because float32 resolves no smaller ones."""


class Mismatch:
    """Implements `StepAlarm`. `examine` finds the cause before the update of a step that may set off the alarm."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.first: list[float] = []
        """Means of the first steps that were not high."""
        self.last: list[float] = []
        self.since: int | None = None
        """The first of the latest consecutive high steps."""
        self.row = 0
        self.told = False
        self.cause: Cause | None = None

    @staticmethod
    def of(dtype: torch.dtype, *, temperature: float = 1.0) -> Mismatch:
        """The alarm for an engine that computes in this precision and draws at this temperature."""
        return Mismatch(LEVELS[dtype].at(temperature))

    @property
    def suspects(self) -> bool:
        """Can the next step complete a row of high steps?"""
        return self.row >= IN_A_ROW - 1 and not self.told

    def before_update(self, examine: Callable[[Level], Cause]) -> None:
        """Examine the rows of a step if the step may set off the alarm."""
        self.cause = examine(self.level) if self.suspects else None

    def observe(self, step: Step) -> Alarm | None:
        mean, p99 = (step.metrics.get(f"mismatch/fresh_{name}", math.nan) for name in ("mean", "p99"))
        if not math.isfinite(mean):
            return None  # the present weights drew none of its tokens
        high = (p99 if math.isfinite(p99) else mean) > self.level.p99 or self._has_grown(mean)
        self._add(mean, high)
        self.row = self.row + 1 if high else 0
        self.since = (self.since or step.number) if high else None
        if self.row < IN_A_ROW or self.since is None:
            return None
        if self.cause is not None and self.cause.kind == "none":  # when asked again, engines and trainer agree
            self.row, self.since = 0, None
            return None
        self.told = True
        return self._alarm(step.number, self.since, mean, p99)

    def _alarm(self, number: int, since: int, mean: float, p99: float) -> Alarm:
        cause = self.cause or Cause(kind="unknown", text="the cause was not examined")
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
        """`mismatch/drift`: the median of the last five means, divided by the median of the first five."""
        if len(self.first) < STEPS:
            return {}
        now, start = (max(NO_DIFFERENCE, statistics.median(means)) for means in (self.last, self.first))
        return {"mismatch/drift": now / start}

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("first", "last", "since", "row", "told")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.first, self.last = list(state["first"]), list(state["last"])
        self.since, self.row, self.told = state["since"], state["row"], state["told"]
