"""The runs of a comparison at work; how each attempt ended is on file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config import to_yaml
from posttrain.files import write_atomically
from posttrain.lab.experiments.children import Child, ChildResult, start_child
from posttrain.lab.experiments.compare.design import Design
from posttrain.lab.experiments.compare.outcomes import is_settled, read_lines
from posttrain.lab.experiments.pool import let_orphans_end, planned_time, share_of_processor, threads_of, work

ATTEMPTS = "attempts.jsonl"
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """One run to make."""

    design: Design
    arm: str
    seed: int
    folder: Path
    environment: Mapping[str, str]
    ended_as: Callable[[RunTask, ChildResult], None]

    def start(self) -> Child:
        settings = self.folder.with_name(f"{self.folder.name}.yaml")
        write_atomically(settings, to_yaml(self.design.resolved(self.arm, self.seed)))
        return start_child(settings, self.folder, environment=self.environment)

    def look(self, child: Child) -> None:
        """Nothing stops a run early: all get the same."""

    def ended(self, result: ChildResult) -> None:
        self.ended_as(self, result)


def places_of(design: Design, folder: Path) -> list[tuple[str, int, Path]]:
    """(arm, seed, run folder), seed by seed, so that a comparison that is cut off has whole seeds, and all arms suffer
    the same hours."""
    return [(arm, seed, run_folder(folder, arm, seed)) for seed in design.seeds for arm in design.arms]


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    return folder / "runs" / f"{arm}-seed{seed}"


def carry_out(design: Design, folder: Path, *, workers: int, tell: Tell) -> None:
    """Make every run that is not settled yet, `workers` at a time. A run that fails is on file and stops no other."""
    places = places_of(design, folder)
    waiting = [place for place in places if not is_settled(place[2])]
    if any(run.is_dir() for _, _, run in waiting):
        let_orphans_end()
    done = len(places) - len(waiting)

    def ended_as(task: RunTask, result: ChildResult) -> None:
        nonlocal done
        done += 1
        keep_attempt(folder, _attempt(task, result, workers))
        state = "finished" if result.ok else f"did not finish: {result.reason}"
        tell(f"{done} of {len(places)}: {task.arm}, seed {task.seed}, {state} ({result.seconds:.0f} s)")

    by_steps = design.budget.unit == "steps"
    took = planned_time(design.resolved(arm, seed).config for arm, seed, _ in waiting) if by_steps else ""
    tell(f"{len(waiting)} runs, of {len(design.arms)} arms with {len(design.seeds)} seeds each{took}")
    environment = share_of_processor(workers)
    tasks = (
        RunTask(design=design, arm=arm, seed=seed, folder=run, environment=environment, ended_as=ended_as)
        for arm, seed, run in waiting
    )
    work(tasks, workers)


def read_attempts(folder: Path) -> list[dict[str, Any]]:
    """Every attempt so far, in the order in which they ended; a line that a kill cut off is none."""
    return [dict(line) for line in read_lines(folder / ATTEMPTS)]


def keep_attempt(folder: Path, attempt: Mapping[str, Any]) -> None:
    """Put it on file, on a line of its own even behind one that a kill cut off."""
    path = folder / ATTEMPTS
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(attempt) + "\n")


def _attempt(task: RunTask, result: ChildResult, workers: int) -> dict[str, Any]:
    return {
        "arm": task.arm,
        "seed": task.seed,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "workers": workers,
        "threads": threads_of(task.environment),
        "load": round(os.getloadavg()[0], 2),
    }
