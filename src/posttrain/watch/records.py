"""The inputs of an alarm, and the alarm itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

AlarmKind = Literal[
    "disagreement",
    "heldout_drop",
    "gap",
    "length_correlation",
    "length",
    "truncation",
    "repetition",
    "compression",
    "template",
    "concentration",
    "entropy",
    "kl",
    "failures",
    "no_signal",
    "mismatch",
]
Movement = Literal["rose", "flat", "fell", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as the alarms see it: only numbers, so that alarms can be replayed from a run's metrics."""

    number: int
    metrics: Mapping[str, float]
    """The metrics of the step. A number that was not measured is missing or nan."""
    reward: Movement = "unknown"
    """The change of the training reward since the start."""
    heldout: Movement = "unknown"
    """The change of the held-out score since before training, by the independent check if there is one."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """One evaluation as the alarms see it."""

    step: int
    score: float
    """Mean score of greedy answers, by the independent check if there is one, else by the reward."""
    error: float
    """Standard error of the score; infinite if it is unknown."""
    reward: float
    """Mean reward of the same answers."""
    sampled: float | None
    """Mean reward of sampled answers."""
    shares: bool = True
    """Do the rewards and this score lie between 0 and 1?"""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A finding that looks like a run whose reward is gamed, or whose engines disagree with the trainer."""

    kind: AlarmKind
    step: int
    """The step that set off the alarm."""
    change_point: int
    """The estimated first step of the change."""
    message: str
    """What changed, and from which value to which."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the message."""
    fix: str = ""
    """The alarm's own advice; if empty, the advice is to fix the reward."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "step", "change_point", "message", "fix")} | {
            "evidence": dict(self.evidence)
        }


class StepAlarm(Protocol):
    """An alarm that observes every step."""

    def observe(self, step: Step) -> Alarm | None: ...
    def state(self) -> dict[str, Any]:
        """Plain JSON for a checkpoint, so that a resumed run fires at the same step as an uninterrupted one."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...
