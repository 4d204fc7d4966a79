"""What a run has measured on held-out rows so far, read from its folder, at work or ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.report.heldout import LOWER_IS_BETTER, headline_span, kind_of, measure_of
from posttrain.report.spans import Span
from posttrain.report.store import mapping, number, read_run

INTERRUPTED = "KeyboardInterrupt"


@dataclass(frozen=True, kw_only=True)
class Course:
    """Held-out scores of one run by step; 0 is before training."""

    measure: str
    """`score` of greedy answers (the mean of their total reward), else as the report of the run has it."""
    points: tuple[tuple[int, Span], ...]
    tokens: int
    """Trained so far."""
    state: Literal["finished", "failed", "unfinished"]
    error: Mapping[str, Any]
    """error.json of a run that failed by itself; empty where it was stopped from outside, and goes on."""

    @property
    def baseline(self) -> Span | None:
        return self.points[0][1] if self.points and self.points[0][0] == 0 else None

    @property
    def last(self) -> Span | None:
        """After training, where there is one."""
        return self.points[-1][1] if len(self.points) > 1 else None

    @property
    def is_worse(self) -> bool:
        """Is the last measurement shown to be worse than the first: intervals that do not overlap?"""
        first, last = self.baseline, self.last
        if first is None or last is None or not first.disjoint(last):
            return False
        return goodness(self.measure, last.mean) < goodness(self.measure, first.mean)


def goodness(measure: str, value: float) -> float:
    """The value, or of a measure where lower is better its negative."""
    return -value if measure in LOWER_IS_BETTER else value


def read_course(folder: Path) -> Course:
    """Of a run folder, in whatever state; without points where nothing was measured yet."""
    run = read_run(folder)
    found = {
        int(number(event.get("step"), 0)): mapping(event.get("evaluation"))
        for event in run.events
        if event.get("kind") == "evaluation" and event.get("evaluation")
    }
    measure = _measure(*found.values())
    spans = [(step, headline_span(found[step], measure)) for step in sorted(found)]
    error = mapping(run.error) if run.status == "failed" else {}
    stopped = error.get("type") == INTERRUPTED
    return Course(
        measure=measure,
        points=tuple((step, span) for step, span in spans if span is not None),
        tokens=int(run.series("num_tokens")[-1][1]) if run.series("num_tokens") else 0,
        state="unfinished" if stopped else run.status,
        error={} if stopped else error,
    )


def _measure(*evaluations: Mapping[str, Any]) -> str:
    """`score` of answers even where the report says accuracy: which of the two it says depends on the answers seen."""
    return "score" if kind_of(*evaluations) == "answers" else measure_of(*evaluations)
