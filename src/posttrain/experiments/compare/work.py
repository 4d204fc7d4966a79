"""The runs of a comparison at work: each in its own process, some at a time; how each attempt ended is on file."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config import to_yaml
from posttrain.experiments.children import Child, ChildResult, start_child
from posttrain.experiments.compare.design import Design
from posttrain.experiments.compare.outcomes import is_settled
from posttrain.files import write_atomically

ATTEMPTS = "attempts.jsonl"
LOOKED_EVERY = 0.1
PATIENCE = 60.0
"""Seconds that runs have to finish their step and save, when a comparison is stopped."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """One run to make."""

    arm: str
    seed: int
    folder: Path


def tasks_of(design: Design, folder: Path) -> list[Task]:
    """Seed by seed, so that a comparison that is cut off has whole seeds, and all arms suffer the same hours."""
    return [Task(arm, seed, run_folder(folder, arm, seed)) for seed in design.seeds for arm in design.arms]


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    return folder / "runs" / f"{arm}-seed{seed}"


def carry_out(design: Design, folder: Path, *, workers: int, tell: Tell) -> None:
    """Make every run that is not settled yet, `workers` at a time. A run that fails is on file and stops no other.

    An interrupt lets the runs at work finish their step and save, and is raised again.
    """
    waiting = [task for task in tasks_of(design, folder) if not is_settled(task.folder)]
    total, done = len(design.seeds) * len(design.arms), len(design.seeds) * len(design.arms) - len(waiting)
    environment = threads_for(workers)
    working: dict[Child, Task] = {}
    with _ended_children(working), _terminated_as_interrupted():
        while waiting or working:
            while waiting and len(working) < workers:
                task = waiting.pop(0)
                working[_start(design, task, environment)] = task
            for child in [child for child in working if not child.running]:
                task, result = working.pop(child), child.wait()
                done += 1
                _record(folder, task, result, workers)
                state = "finished" if result.ok else f"did not finish: {result.reason}"
                tell(f"{done} of {total}: {task.arm}, seed {task.seed}, {state} ({result.seconds:.0f} s)")
            time.sleep(LOOKED_EVERY)


def threads_for(workers: int) -> dict[str, str]:
    """The cores are shared out, where nobody has said how many threads a run may have."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}


def read_attempts(folder: Path) -> list[dict[str, Any]]:
    """Every attempt so far, in the order in which they ended."""
    path = folder / ATTEMPTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _start(design: Design, task: Task, environment: Mapping[str, str]) -> Child:
    settings = task.folder.with_name(f"{task.folder.name}.yaml")
    write_atomically(settings, to_yaml(design.resolved(task.arm, task.seed)))
    return start_child(settings, task.folder, environment=environment)


def _record(folder: Path, task: Task, result: ChildResult, workers: int) -> None:
    attempt = {
        "arm": task.arm,
        "seed": task.seed,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "workers": workers,
        "load": round(os.getloadavg()[0], 2),
    }
    with (folder / ATTEMPTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(attempt) + "\n")


@contextmanager
def _ended_children(working: Mapping[Child, Task]) -> Iterator[None]:
    """However this ends, no run goes on without it."""
    try:
        yield
    finally:
        for child in working:
            child.ask_to_stop()
        for child in working:
            child.end(PATIENCE)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a comparison as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
