"""One trial: an ordinary run with changed settings, watched while it trains and pruned if it falls behind.

Its `Course` holds the run's held-out scores so far, read from its folder.
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
from posttrain.report.store import mapping, read_run

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


INTERRUPTED = "KeyboardInterrupt"


@dataclass(frozen=True, kw_only=True)
class Course:
    """The held-out scores of one run by step. Step 0 is before training."""

    measure: str
    """`score` (the mean total reward) for greedy answers, otherwise the measure of the run's report."""
    points: tuple[tuple[int, Span], ...]
    tokens: int
    """Number of tokens trained on so far."""
    state: Literal["finished", "failed", "unfinished"]
    error: Mapping[str, Any]
    """Content of error.json if the run failed. Empty if it was stopped from outside and can continue."""

    @property
    def baseline(self) -> Span | None:
        return self.points[0][1] if self.points and self.points[0][0] == 0 else None

    @property
    def last(self) -> Span | None:
        """The newest score after step 0, if there is one."""
        return self.points[-1][1] if len(self.points) > 1 else None

    @property
    def is_worse(self) -> bool:
        """Is the last score significantly worse than the first? Their intervals must not overlap."""
        first, last = self.baseline, self.last
        if first is None or last is None or not first.disjoint(last):
            return False
        return goodness(self.measure, last.mean) < goodness(self.measure, first.mean)


def goodness(measure: str, value: float) -> float:
    """Return the value, with a minus sign if lower is better for this measure."""
    return -value if measure in LOWER_IS_BETTER else value


def read_course(folder: Path) -> Course:
    """Read the course of a run in any state. It has no points if nothing has been measured yet."""
    run = read_run(folder)
    found = run.evaluations
    measure = _measure(*found.values())
    spans = [(step, headline_span(evaluation, measure)) for step, evaluation in found.items()]
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
    """Return the measure: `score` for answers. The report's choice of accuracy depends on the answers seen so far."""
    return "score" if kind_of(*evaluations) == "answers" else measure_of(*evaluations)


COLLAPSED = GuardStop.exit_code
Say = Callable[[str], None]


@dataclass(kw_only=True)
class TrialTask:
    """A trial in progress. `folder` holds its run, the study its results."""

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
        """Return an earlier trial with the same values. With the same seed, this would be the same run."""
        ended = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]
        return next((trial for trial in ended if trial.params == self.trial.params), None)

    def _repeat(self, same: FrozenTrial) -> None:
        for name, content in (same.user_attrs | {"reason": f"the same settings as trial {same.number}"}).items():
            self.trial.set_user_attr(name, content)
        tell(self.study, self.trial, same.user_attrs["outcome"], same.value)
        self.say(f"trial {self.trial.number} has the same settings as trial {same.number} and is not run again")

    def look(self, child: Child) -> None:
        """Report each new held-out score, and stop the run if it falls behind."""
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
        """Report new scores to the study. Return True if there were any."""
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
        """Save the result, then close the trial in the study. If a kill comes between the two, both are repeated."""
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


def trial_folder(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:03d}"


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
    """Yield the trials that were running when the last process ended, then new ones up to `trials`. The first trial has
    the `default` values, if the knobs can take them."""

    def task(trial: Trial, reported: set[int]) -> TrialTask:
        values = {knob.key: knob.suggest(trial) for knob in knobs}
        if default is not None and values == dict(default):
            trial.set_user_attr("default", True)
        return TrialTask(
            study=study,
            trial=trial,
            folder=trial_folder(folder, trial.number),
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
