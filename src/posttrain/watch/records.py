"""What an alarm is given and what it says."""

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
    """One step as the alarms see it: numbers only, so that a run can be watched again from its metrics."""

    number: int
    metrics: Mapping[str, float]
    """The metrics of the step; what was not measured is missing or nan."""
    reward: Movement = "unknown"
    """The change of the training reward since the start."""
    heldout: Movement = "unknown"
    """The change of the held-out score since before training; that of the independent check if there is one."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """One evaluation as the alarms see it."""

    step: int
    score: float
    """Greedy answers by the independent check where there is one, else by the reward."""
    error: float
    """Its standard error."""
    reward: float
    """The same answers by the reward."""
    sampled: float | None
    """Sampled answers by the reward."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Something moved as it does in runs that are gamed."""

    kind: AlarmKind
    step: int
    """The step that set it off."""
    change_point: int
    """The first step that was different, as far as can be told."""
    message: str
    """What moved, from where to where."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the message."""
    fix: str = ""
    """Advice, if the alarm has some; else: fix the reward."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "step", "change_point", "message", "fix")} | {
            "evidence": dict(self.evidence)
        }


class StepAlarm(Protocol):
    """Looks at every step."""

    def observe(self, step: Step) -> Alarm | None: ...
    def state(self) -> dict[str, Any]:
        """Plain JSON, for a checkpoint: a resumed run fires where the other would have."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...
