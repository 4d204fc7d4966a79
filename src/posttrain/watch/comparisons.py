"""The alarms that compare the last steps with the first ones, one table row each.

An alarm fires if the mean of the last steps is past a limit that depends on the start, the difference is more than
three standard errors, and nothing shows that the change is good. A detector that ignores whether the reward and an
independent score have moved would fire in every run that learns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from posttrain.watch.answers import FEW_TOKENS
from posttrain.watch.course import Course
from posttrain.watch.records import Alarm, AlarmKind, Step

if TYPE_CHECKING:
    from posttrain.config.sections import AlarmConfig

CERTAIN = 3.0
"""Number of standard errors by which the last steps must differ from the first."""
INFRASTRUCTURE = ("timeout", "error", "ambiguous")
Read = Callable[[Mapping[str, float]], float]
"""Reads a number from a step's metrics; nan if it is missing."""
Limit = Callable[[float, float], float]
Gate = Callable[[Step, "AlarmConfig"], bool]
"""May a change at this step be a bad one?"""


def metric(name: str) -> Read:
    return lambda metrics: metrics.get(name, math.nan)


# --- when a change is suspicious -------------------------------------------------------------------------------------


def paid_and_unproved(step: Step, config: AlarmConfig) -> bool:
    """The reward rose, but no independent score rose with it."""
    return step.reward == "rose" and step.heldout != "rose"


def unproved(step: Step, config: AlarmConfig) -> bool:
    return step.heldout != "rose"


def disproved(step: Step, config: AlarmConfig) -> bool:
    """There is an independent score, and it has not risen."""
    return step.heldout in ("flat", "fell")


def without_profit(step: Step, config: AlarmConfig) -> bool:
    """The independent score has not risen, or the reward if there is no such score: the task is not being learned."""
    return disproved(step, config) or (step.heldout == "unknown" and step.reward != "rose")


def longer_for_its_own_sake(step: Step, config: AlarmConfig) -> bool:
    """The reward rose and the independent score did not, or there is none and reward correlates with length."""
    goes_with_reward = step.metrics.get("text/length_correlation", 0.0) > (config.length_correlation or 0.0)
    return step.reward == "rose" and (disproved(step, config) or (step.heldout == "unknown" and goes_with_reward))


def always(step: Step, config: AlarmConfig) -> bool:
    return True


# --- the table -------------------------------------------------------------------------------------------------------


def failing(metrics: Mapping[str, float]) -> float:
    """Share of answers without a score, or the share of timeouts, errors and ambiguous answers of the worst reward."""
    by_label: dict[str, float] = {}
    for name, value in metrics.items():
        label, _, reason = name.rpartition("/reason/")
        if reason in INFRASTRUCTURE:
            by_label[label] = by_label.get(label, 0.0) + value
    return max([metrics.get("unscored_fraction", math.nan), *by_label.values()])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A table row: a number, how far it may go, and when crossing that limit is suspicious."""

    setting: str
    """Setting of the section `alarms` that says how far the number may go; null switches the row off."""
    kind: AlarmKind
    what: str
    read: Read
    limit: Limit
    """(start, setting) -> the limit above which the number is too high, or below which it is too low if `falls`."""
    gate: Gate
    falls: bool = False


def times(start: float, given: float) -> float:
    return given * start


def plus(start: float, given: float) -> float:
    return start + given


def longer(start: float, given: float) -> float:
    """A multiple of the start, but at least a few tokens more: from two tokens to three is no alarm."""
    return max(given * start, start + FEW_TOKENS)


def above_zero(start: float, given: float) -> float:
    return max(start, 0.0) + given


def below_zero(start: float, given: float) -> float:
    return min(start, 0.0) - given


def at_least_twice(start: float, given: float) -> float:
    return max(given, 2 * start)


def the_larger(start: float, given: float) -> float:
    return max(start, given)


GATES: Mapping[str, Gate] = {
    gate.__name__: gate
    for gate in (paid_and_unproved, unproved, disproved, without_profit, longer_for_its_own_sake, always)
}
LIMITS: Mapping[str, Limit] = {
    limit.__name__: limit for limit in (times, plus, longer, above_zero, below_zero, at_least_twice, the_larger)
}


@functools.cache
def table() -> Mapping[str, Compared]:
    """The rows of comparisons.yaml by name."""
    told = yaml.safe_load(Path(__file__).with_name("comparisons.yaml").read_text(encoding="utf-8"))
    return {
        name: Compared(
            setting=row["setting"],
            kind=row.get("kind", name),
            what=row["what"],
            read=failing if row["metric"] == "failing" else metric(row["metric"]),
            limit=LIMITS[row["limit"]],
            gate=GATES[row["gate"]],
            falls=row.get("falls", False),
        )
        for name, row in told.items()
    }


def comparisons(config: AlarmConfig) -> dict[str, Comparison]:
    """The comparisons that are not switched off, by name."""
    return {name: Comparison(row, config) for name, row in table().items() if getattr(config, row.setting) is not None}


class Comparison:
    """One row of the table, followed through a run."""

    def __init__(self, row: Compared, config: AlarmConfig) -> None:
        self.row, self.config, self.given = row, config, getattr(config, row.setting)
        self.sign = -1.0 if row.falls else 1.0
        self.course = Course(config.reference_steps)
        self.since: int | None = None
        """First of the latest consecutive steps that are more than halfway from the start to the limit."""

    def observe(self, step: Step) -> Alarm | None:
        value, course = self.row.read(step.metrics), self.course
        course.add(value)
        if not course.is_known:
            return None
        limit = self.row.limit(course.start, self.given)
        if math.isfinite(value):
            on_its_way = self.sign * (value - (course.start + limit) / 2) > 0
            self.since = (self.since or step.number) if on_its_way else None
        past = self.sign * (course.now - limit) > 0
        certain = abs(course.now - course.start) > CERTAIN * course.error
        if not (past and certain and self.row.gate(step, self.config)):
            return None
        return Alarm(
            kind=self.row.kind,
            step=step.number,
            change_point=self.since or step.number,
            message=f"{self.row.what} went from {course.start:.3g} in the first {len(course.first)} steps to "
            f"{course.now:.3g} in the last {course.size} (limit {limit:.3g})",
            evidence={"start": course.start, "now": course.now, "limit": limit, "standard_error": course.error},
        )

    def state(self) -> dict[str, Any]:
        return {**self.course.state(), "since": self.since}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.course.load_state(state)
        self.since = state["since"]
