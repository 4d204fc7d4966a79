"""Finds the runs below a folder and the state of each, only from its files, even if they are damaged."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from posttrain.report.alarms import alarms_of
from posttrain.report.charts import heldout_points
from posttrain.report.spans import Span
from posttrain.report.store import RunRecord, State, Status, number, read_run, state_of
from posttrain.report.verdict import verdict

DEEPEST = 6
"""Maximum depth of subfolders to search: a sweep of pipelines needs five."""
MOST_RUNS = 2000
INTERRUPTIONS = ("KeyboardInterrupt", "AlarmStop")
"""Errors which mean that a person stopped the run, or that it waits for one."""
_FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "evaluation.json", "error.json", "rollouts")
_NOT_INSIDE = {
    "checkpoints", "rollouts", "judgements", "evidence", "alarms", "references", "evaluations", "export", "tensorboard",
    "tracking",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """The runs and pages in a folder and below it. Names are paths relative to the folder."""

    runs: dict[str, Path]
    pages: dict[str, Path]
    """Folders of comparisons, sweeps and pipelines that have a page."""
    complete: bool = True
    """False if there are more runs than `MOST_RUNS`."""


@dataclass(frozen=True, kw_only=True)
class Brief:
    """The summary of a run for one line of the list; None or empty for facts that are not on file."""

    model: str = ""
    algorithm: str = ""
    status: Status
    step: int = 0
    steps: int | None = None
    measure: str = ""
    baseline: Span | None = None
    newest: Span | None = None
    """The last held-out measurement; None if there is only the baseline."""
    reward: float | None = None
    headline: str = ""
    alarms: int = 0
    warnings: int = 0
    error: str = ""
    interrupted: bool = False
    """True if a person stopped the run, or if it stopped to wait for one."""

    @staticmethod
    def of(found: Mapping[str, Any]) -> Brief:
        """Return the Brief that `asdict` turned into a mapping, after a round trip through JSON."""
        spans = {side: None if found[side] is None else Span(*found[side]) for side in ("baseline", "newest")}
        return Brief(**{**found, **spans})


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The current state of a run."""

    name: str
    folder: Path
    state: State
    age: float
    """Seconds since its files last changed."""
    brief: Brief
    marks: tuple[tuple[int, int], ...] = ()
    """(time, size) of each file when it was read; see `marks_of`."""


def find_runs(folder: Path) -> Place:
    """Find runs and pages in and below `folder`. Links to other folders are not followed."""
    runs, pages = dict[str, Path](), dict[str, Path]()
    complete = True
    for found in _folders(folder, DEEPEST):
        relative = found.relative_to(folder).as_posix()
        name = _shown(folder.resolve().name or "run" if relative == "." else relative)
        if not is_run(found):
            if (found / "report.html").is_file():
                pages[name] = found
        elif len(runs) < MOST_RUNS:
            runs[name] = found
        else:
            complete = False
            break
    return Place(runs=runs, pages=pages, complete=complete)


def _shown(name: str) -> str:
    """Return the name with characters replaced that cannot be printed or be part of an address."""
    return re.sub(r"[\x00-\x1f\x7f]", "\N{REPLACEMENT CHARACTER}", os.fsencode(name).decode(errors="replace"))


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "events.jsonl").is_file()


class Unreadable(Exception):
    """A run could not be read within the limits."""


Read = Callable[[Path], "Brief"]


def read_brief(folder: Path) -> Brief:
    return as_brief(read_run(folder))


def standing(name: str, folder: Path, read: Read = read_brief) -> Standing:
    """Return the current state of a run. It is read again only if its files have changed since the last look."""
    marks = marks_of(folder)
    brief = _brief(folder, marks, read)
    changed = max((when for when, _ in marks), default=0) / 1e9
    return Standing(
        name=name,
        folder=folder,
        state="stopped" if brief.interrupted else state_of(folder, brief.status),
        age=max(0.0, time.time() - changed),
        brief=brief,
        marks=marks,
    )


def marks_of(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return (time, size) of each file of a run. If one of them changes, there is something new."""
    return tuple(_mark(folder / file) for file in _FILES)


def as_json(found: Standing) -> dict[str, Any]:
    """Return the facts about a run that the page of all runs shows, for programs."""
    brief = {name: value for name, value in vars(found.brief).items() if name not in ("status", "interrupted")}
    spans = {name: None if brief[name] is None else brief[name]._asdict() for name in ("baseline", "newest")}
    place = {"name": found.name, "folder": str(found.folder), "state": found.state}
    return {**place, "seconds_since_change": round(found.age, 1), **brief, **spans}


@lru_cache(maxsize=2 * MOST_RUNS)
def _brief(folder: Path, marks: tuple[tuple[int, int], ...], read: Read) -> Brief:
    """Read a run, cached by `marks`: if the time or size of a file changes, the run is read again."""
    try:
        return read(folder)
    except Unreadable as reason:
        return Brief(status="failed", error=str(reason))
    except Exception as reason:  # a damaged run must not hide the others
        told = f"its files could not be read ({type(reason).__name__}: {str(reason)[:200]})"
        return Brief(status="failed", error=told)


def as_brief(run: RunRecord) -> Brief:
    measure, points = heldout_points(run)
    rewards, steps = run.series("reward"), number(run.setting("train.steps"))
    return Brief(
        model=str(run.setting("model.path") or ""),
        algorithm=str(run.setting("algorithm.name") or ""),
        status=run.status,
        step=run.metrics[-1]["step"] if run.metrics else 0,
        steps=None if steps is None else int(steps),
        measure=measure,
        baseline=points[0][1] if points and points[0][0] == 0 else None,
        newest=points[-1][1] if points and points[-1][0] > 0 else None,
        reward=rewards[-1][1] if rewards else None,
        headline=verdict(run).headline if run.status == "finished" else "",
        alarms=len(alarms_of(run)),
        warnings=sum(event.get("kind") in ("warning", "guard") for event in run.events),
        error=_error(run),
        interrupted=run.status == "failed" and (run.error or {}).get("type") in INTERRUPTIONS,
    )


def _error(run: RunRecord) -> str:
    """Return the first line of the error. For a finished run, return the first note about an unreadable file."""
    if run.status == "finished" and run.notes:
        return run.notes[0]
    if run.status != "failed" or run.error is None:
        return ""
    lines = str(run.error.get("message") or "").splitlines() or [""]
    return f"{run.error.get('type', 'Error')}: {lines[0]}"


def _mark(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folder and its subfolders, except the inner folders of a run and folders that cannot be read."""
    yield folder
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    of_run = is_run(folder)
    for name in inner:
        if not name.startswith(".") and not (name in _NOT_INSIDE and of_run):
            yield from _folders(folder / name, depth - 1)
