"""One trial: an ordinary run with some settings turned, watched while it trains and pruned where others do better.

Its `Course` is what the run has measured on held-out rows so far, read from its folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posttrain.config import check, load_config
from posttrain.errors import ConfigError, GuardStop
from posttrain.lab.experiments.children import Child, ChildResult, start_child
from posttrain.lab.experiments.sweep.knobs import Knob
from posttrain.lab.experiments.sweep.settings import with_values
from posttrain.lab.experiments.sweep.study import Outcome, begun, tell, unfinished
from posttrain.report.heldout import LOWER_IS_BETTER, headline_span, kind_of, measure_of
from posttrain.report.spans import Span
from posttrain.report.store import mapping, number, read_run

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


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
    """The course of a run folder in any state; without points if nothing has been measured yet."""
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


COLLAPSED = GuardStop.exit_code
Say = Callable[[str], None]


@dataclass(kw_only=True)
class TrialTask:
    """A trial at work: its run is `folder`, what is known of it is in the study."""

    study: Study
    trial: Trial
    folder: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    say: Say
    reported: set[int] = field(default_factory=set)
    pruned: bool = False
    size: int = -1

    def start(self) -> Child | None:
        if (same := self._done_before()) is not None:
            self._repeat(same)
            return None
        course = read_course(self.folder) if self.folder.is_dir() else None
        if course is not None and course.state != "unfinished":
            self._end(int(course.error.get("exit_code", 1)) if course.error else 0, _in_line(course.error), course)
            return None
        try:
            check(load_config(self.settings).config)
        except ConfigError as error:
            self._conclude("failed", f"{type(error).__name__}: {error.given}", None)
            return None
        return start_child(self.settings, self.folder, environment=self.environment)

    def _done_before(self) -> FrozenTrial | None:
        """An earlier trial with these values. It would be the same run: the seed is the same, too."""
        ended = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]
        return next((trial for trial in ended if trial.params == self.trial.params), None)

    def _repeat(self, same: FrozenTrial) -> None:
        for name, content in (same.user_attrs | {"reason": f"the same settings as trial {same.number}"}).items():
            self.trial.set_user_attr(name, content)
        tell(self.study, self.trial, same.user_attrs["outcome"], same.value)
        self.say(f"trial {self.trial.number} has the same settings as trial {same.number} and is not run again")

    def look(self, child: Child) -> None:
        """Report each new held-out score, and stop a run that falls behind."""
        events = self.folder / "events.jsonl"
        size = events.stat().st_size if events.exists() else -1
        if size == self.size or self.pruned:
            return
        self.size = size
        if self._report(read_course(self.folder)) and self.trial.should_prune():
            self.pruned = True
            child.ask_to_stop()

    def ended(self, result: ChildResult) -> None:
        course = read_course(self.folder)
        if self.pruned and course.state != "finished":
            self._conclude("pruned", "its held-out score fell behind", course)
        else:
            self._end(result.exit_code, result.reason, course)

    def _report(self, course: Course) -> bool:
        """True where something new was measured."""
        new = [(step, span) for step, span in course.points if step > 0 and step not in self.reported]
        for step, span in new:
            self.trial.report(goodness(course.measure, span.mean), step)
            self.reported.add(step)
        return bool(new)

    def _end(self, exit_code: int, reason: str, course: Course) -> None:
        self._report(course)
        if exit_code == 0:
            self._conclude("finished", "", course)
        else:
            self._conclude("collapsed" if exit_code == COLLAPSED else "failed", reason, course)

    def _conclude(self, outcome: Outcome, reason: str, course: Course | None) -> None:
        """Write down what came of it, then tell the study: a kill in between only makes both happen again."""
        last = course.last if course else None
        value = None if course is None or last is None else goodness(course.measure, last.mean)
        if outcome == "finished" and value is None:
            outcome, reason = "failed", "nothing was measured on held-out rows"
        if outcome in ("finished", "pruned") and course is not None and course.is_worse:
            outcome, reason = "collapsed", "it ended worse than it began, with intervals that do not overlap"
        told: dict[str, Any] = {"outcome": outcome, "reason": reason}
        if course is not None and course.points:
            told |= {"measure": course.measure, "course": [(step, span.mean) for step, span in course.points]}
            told |= {"tokens": course.tokens}
        if course is not None and last is not None:
            told |= {"step": course.points[-1][0], "score": last.mean}
            told |= {"low": last.low, "high": last.high} if last.finite else {}
        for name, content in told.items():
            self.trial.set_user_attr(name, content)
        tell(self.study, self.trial, outcome, value)
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        shown = ", ".join(f"{key} = {value}" for key, value in self.trial.params.items())
        score = f", {course.measure} {last.mean:.4g}" if course is not None and last is not None else ""
        self.say(f"trial {self.trial.number} {outcome}{score} ({shown}){': ' + reason if reason else ''}")


def _in_line(error: Mapping[str, Any]) -> str:
    return f"{error.get('type')}: {str(error.get('message', '')).partition(chr(10))[0]}" if error else ""


def trial_tasks(
    study: Study,
    knobs: tuple[Knob, ...],
    base: Mapping[str, Any],
    *,
    trials: int,
    folder: Path,
    environment: Mapping[str, str],
    default: Mapping[str, Any] | None,
    say: Say,
) -> Iterator[TrialTask]:
    """First those that were at work when the last process ended, then new ones up to `trials`; the first of all has the
    `default` values, where the knobs can be turned to them."""

    def task(trial: Trial, reported: set[int]) -> TrialTask:
        values = {knob.key: knob.suggest(trial) for knob in knobs}
        if default is not None and values == dict(default):
            trial.set_user_attr("default", True)
        return TrialTask(
            study=study,
            trial=trial,
            folder=folder / f"trial-{trial.number:03d}",
            settings=with_values(base, values),
            environment=environment,
            say=say,
            reported=reported,
        )

    for trial, reported in list(unfinished(study)):
        yield task(trial, reported)
    if default is not None and begun(study) == 0:
        study.enqueue_trial({knob.key: knob.stored(default[knob.key]) for knob in knobs}, skip_if_exists=True)
    while begun(study) < trials:
        yield task(study.ask(), set())
