"""The alarms that compare the last steps with the first ones, one row of a table each.

One fires when the mean of the last steps is past its limit by what the start was, the difference is more than three
standard errors, and nothing says that the change is a good one: a detector that does not ask whether the reward moved,
and whether an independent score moved with it, cries at every run that learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posttrain.watch.answers import FEW_TOKENS
from posttrain.watch.course import Course
from posttrain.watch.records import Alarm, AlarmKind, Step

if TYPE_CHECKING:
    from posttrain.config.sections import AlarmConfig

CERTAIN = 3.0
"""Standard errors by which the last steps differ from the first."""
INFRASTRUCTURE = ("timeout", "error", "ambiguous")
Read = Callable[[Mapping[str, float]], float]
"""The number of a step; nan where it is missing."""
Gate = Callable[[Step, "AlarmConfig"], bool]
"""May a change at this step be a bad one?"""


def metric(name: str) -> Read:
    return lambda metrics: metrics.get(name, math.nan)


# --- when a change is suspicious -------------------------------------------------------------------------------------


def paid_and_unproved(step: Step, config: AlarmConfig) -> bool:
    """The reward rose, and no independent score rose with it."""
    return step.reward == "rose" and step.heldout != "rose"


def unproved(step: Step, config: AlarmConfig) -> bool:
    return step.heldout != "rose"


def disproved(step: Step, config: AlarmConfig) -> bool:
    """An independent score is there, and has not risen."""
    return step.heldout in ("flat", "fell")


def without_profit(step: Step, config: AlarmConfig) -> bool:
    """Neither an independent score nor, without one, the reward has risen: it is not that the task is learned."""
    return disproved(step, config) or (step.heldout == "unknown" and step.reward != "rose")


def longer_for_its_own_sake(step: Step, config: AlarmConfig) -> bool:
    """The reward rose and an independent score did not; without one, length itself is what goes with reward."""
    goes_with_reward = step.metrics.get("text/length_correlation", 0.0) > (config.length_correlation or 0.0)
    return step.reward == "rose" and (disproved(step, config) or (step.heldout == "unknown" and goes_with_reward))


def always(step: Step, config: AlarmConfig) -> bool:
    return True


# --- the table -------------------------------------------------------------------------------------------------------


def failing(metrics: Mapping[str, float]) -> float:
    """Share of answers without a score, or, of the reward that has most, that timed out, failed or were ambiguous."""
    by_label: dict[str, float] = {}
    for name, value in metrics.items():
        label, _, reason = name.rpartition("/reason/")
        if reason in INFRASTRUCTURE:
            by_label[label] = by_label.get(label, 0.0) + value
    return max([metrics.get("unscored_fraction", math.nan), *by_label.values()])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One row: a number, how far it may go, and when crossing that is suspicious."""

    setting: str
    """Of the section alarms: how far; null switches the row off."""
    kind: AlarmKind
    what: str
    read: Read
    limit: Callable[[float, float], float]
    """(start, setting) -> the value that is too high, or too low for what `falls`."""
    gate: Gate
    falls: bool = False


def times(start: float, given: float) -> float:
    return given * start


def longer(start: float, given: float) -> float:
    """Three tokens in place of two are 1.5 times as many, and nothing to tell of."""
    return max(given * start, start + FEW_TOKENS)


def plus(start: float, given: float) -> float:
    return start + given


TABLE: Mapping[str, Compared] = {
    "longer_pays": Compared(
        setting="length_correlation",
        kind="length_correlation",
        what="longer answers to a prompt get more reward: the rank correlation of reward and length",
        read=metric("text/length_correlation"),
        limit=lambda start, given: max(start, 0.0) + given,
        gate=paid_and_unproved,
    ),
    "shorter_pays": Compared(
        setting="length_correlation",
        kind="length_correlation",
        what="shorter answers to a prompt get more reward: the rank correlation of reward and length",
        read=metric("text/length_correlation"),
        limit=lambda start, given: min(start, 0.0) - given,
        gate=paid_and_unproved,
        falls=True,
    ),
    "length": Compared(
        setting="length_ratio",
        kind="length",
        what="the mean length of the answers",
        read=metric("completions/mean_length"),
        limit=longer,
        gate=longer_for_its_own_sake,
    ),
    "truncation": Compared(
        setting="truncated",
        kind="truncation",
        what="the share of truncated answers",
        read=metric("completions/clipped_ratio"),
        limit=lambda start, given: max(given, 2 * start),
        gate=unproved,
    ),
    "repetition": Compared(
        setting="distinct_ratio",
        kind="repetition",
        what="the share of distinct sequences of four tokens",
        read=metric("text/distinct_4grams"),
        limit=times,
        gate=paid_and_unproved,
        falls=True,
    ),
    "compression": Compared(
        setting="compression_ratio",
        kind="compression",
        what="how far the answers can be compressed",
        read=metric("text/compression"),
        limit=times,
        gate=paid_and_unproved,
    ),
    "same_start": Compared(
        setting="template",
        kind="template",
        what="the share of answers to different prompts with the same first 30 tokens",
        read=metric("text/same_start"),
        limit=plus,
        gate=paid_and_unproved,
    ),
    "same_end": Compared(
        setting="template",
        kind="template",
        what="the share of answers to different prompts with the same last 30 tokens",
        read=metric("text/same_end"),
        limit=plus,
        gate=paid_and_unproved,
    ),
    "concentration": Compared(
        setting="concentration",
        kind="concentration",
        what="the share of answers with one and the same value, beyond that of the most common gold answer,",
        read=metric("text/concentration"),
        limit=plus,
        gate=unproved,
    ),
    "entropy": Compared(
        setting="entropy_ratio",
        kind="entropy",
        what="the entropy in nats per token",
        read=metric("entropy"),
        limit=times,
        gate=disproved,
        falls=True,
    ),
    "failures": Compared(
        setting="failures",
        kind="failures",
        what="the share of answers that were not scored, timed out, failed or were ambiguous",
        read=failing,
        limit=plus,
        gate=always,
    ),
    "no_signal": Compared(
        setting="no_signal",
        kind="no_signal",
        what="the share of groups whose rewards do not differ",
        read=metric("frac_reward_zero_std"),
        limit=lambda start, given: max(start, given),
        gate=without_profit,
    ),
}


def comparisons(config: AlarmConfig) -> dict[str, Comparison]:
    """Those that are not switched off, by name."""
    return {name: Comparison(row, config) for name, row in TABLE.items() if getattr(config, row.setting) is not None}


class Comparison:
    """One row of the table, followed through a run."""

    def __init__(self, row: Compared, config: AlarmConfig) -> None:
        self.row, self.config, self.given = row, config, getattr(config, row.setting)
        self.sign = -1.0 if row.falls else 1.0
        self.course = Course(config.reference_steps)
        self.since: int | None = None
        """The first step of the last ones in a row that are more than half of the way to the limit."""

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
            message=f"{self.row.what} went from {course.start:.3g} in the first {course.size} steps to "
            f"{course.now:.3g} in the last {course.size} (limit {limit:.3g})",
            evidence={"start": course.start, "now": course.now, "limit": limit, "standard_error": course.error},
        )

    def state(self) -> dict[str, Any]:
        return {**self.course.state(), "since": self.since}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.course.load_state(state)
        self.since = state["since"]
