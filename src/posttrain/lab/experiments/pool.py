"""Runs several tasks in parallel, each in its own process, and supervises them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from posttrain.config import RunConfig
from posttrain.control_groups import cores
from posttrain.lab.experiments.children import WATCHED_EVERY, Child, ChildResult
from posttrain.lab.plan.api import plan_for, target_of, with_lengths
from posttrain.lab.plan.render import duration, money
from posttrain.stopping import terminated_as_interrupted

LOOKED_AFTER_EVERY = 0.2
"""Interval between two checks of the runs, in seconds."""
PATIENCE = 60.0
"""Time, in seconds, for runs to finish their step and save when everything is stopped."""


class Task(Protocol):
    """A run to carry out."""

    def start(self) -> Child | None:
        """Start the run and return its process. None if the run has already ended or cannot run."""
        ...

    def look(self, child: Child) -> None:
        """Check on the run. Called repeatedly while it runs."""
        ...

    def ended(self, result: ChildResult) -> None:
        """Handle the end of the run. Called once, also after a failure; a failed run stops no other."""
        ...


def planned_time(configs: Iterable[RunConfig]) -> str:
    """Return text such as `: at most about 40 min of steps and evaluations on this machine, as planned, plus the start
    of each run (some 10 s)`, for all runs in sequence. Includes the price if the machine has one. Empty if a run cannot
    be planned. Parallel runs share the machine and save no time."""
    try:
        plans = [plan_for(config, with_lengths(config, target_of(config, None)), advice=False) for config in configs]
    except Exception:  # a failed estimate must not keep runs from starting
        return ""
    if not all(plan.timed for plan in plans):
        return ""
    prices = [plan.dollars for plan in plans if plan.dollars is not None]
    cost = f" and {money((sum(low for low, _ in prices), sum(high for _, high in prices)))}" if prices else ""
    seconds = sum(plan.run_seconds for plan in plans if plan.run_seconds is not None)
    most = f": at most about {duration(seconds)}{cost} of steps and evaluations on this machine, as planned"
    return f"{most}, plus the start of each run (some 10 s)"


def work(tasks: Iterator[Task], workers: int) -> None:
    """Do the tasks, `workers` at a time. The next task is requested when a worker is free.

    An early end, usually by Ctrl-C or SIGTERM, lets the current runs save, so that they can be continued. It is then
    raised again.
    """
    at_work: dict[Child, Task] = {}
    more = True
    with terminated_as_interrupted(), _ended_with_this(at_work):
        while more or at_work:
            while more and len(at_work) < workers:
                task = next(tasks, None)
                more = task is not None
                child = task.start() if task is not None else None
                if task is not None and child is not None:
                    at_work[child] = task
            for child, task in list(at_work.items()):
                if child.running:
                    task.look(child)
                else:
                    del at_work[child]
                    task.ended(child.wait())
            if at_work:
                time.sleep(LOOKED_AFTER_EVERY)


def share_of_processor(workers: int) -> Mapping[str, str]:
    """Return OMP_NUM_THREADS that divides the cores between the workers, unless the user has set it."""
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores() // workers))}


def threads_of(environment: Mapping[str, str]) -> int:
    """Return the number of threads of a run with these environment variables in addition to ours."""
    told = (environment.get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "")).partition(",")[0]
    return int(told) if told.isdecimal() else cores()


def let_orphans_end() -> None:
    """Wait until runs whose parent was killed notice it and end. Until then their folders are locked."""
    time.sleep(2 * WATCHED_EVERY)


@contextmanager
def _ended_with_this(at_work: Mapping[Child, Task]) -> Iterator[None]:
    """Stop all current runs when the block ends, however it ends."""
    try:
        yield
    finally:
        for child in at_work:
            child.ask_to_stop()
        for child in at_work:
            child.end(PATIENCE)
