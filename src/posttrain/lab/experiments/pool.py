"""Several runs at once, each in a process of its own, looked after by this one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from posttrain.config import RunConfig
from posttrain.control_groups import cores
from posttrain.lab.experiments.children import WATCHED_EVERY, Child, ChildResult
from posttrain.lab.plan.api import plan_for, target_of, with_lengths
from posttrain.lab.plan.render import duration, money

LOOKED_AFTER_EVERY = 0.2
"""Seconds."""
PATIENCE = 60.0
"""Seconds that runs have to finish their step and save, when all of it is stopped."""


class Task(Protocol):
    """A run to be done."""

    def start(self) -> Child | None:
        """Its process; None where there is nothing to run, because it had ended before or cannot be run."""
        ...

    def look(self, child: Child) -> None:
        """Called again and again while it runs."""
        ...

    def ended(self, result: ChildResult) -> None:
        """Called once, however it ended: a run that fails stops no other."""
        ...


def planned_time(configs: Iterable[RunConfig]) -> str:
    """`: at most about 40 min on this machine, as planned`, of these runs one after the other; with a price where the
    machine has one, and nothing where a run cannot be planned. Runs at a time share the machine: no time is saved."""
    try:
        plans = [plan_for(config, with_lengths(config, target_of(config, None)), advice=False) for config in configs]
    except Exception:  # an estimate has no say in whether runs begin
        return ""
    if not all(plan.timed for plan in plans):
        return ""
    prices = [plan.dollars for plan in plans if plan.dollars is not None]
    cost = f" and {money((sum(low for low, _ in prices), sum(high for _, high in prices)))}" if prices else ""
    seconds = sum(plan.run_seconds for plan in plans if plan.run_seconds is not None)
    return f": at most about {duration(seconds)}{cost} on this machine, as planned"


def work(tasks: Iterator[Task], workers: int) -> None:
    """Do the tasks, `workers` at a time; the next is asked for when there is room for it.

    Whatever ends this early, Ctrl-C or SIGTERM above all, lets the runs at work save, and is raised again: they can be
    gone on with.
    """
    at_work: dict[Child, Task] = {}
    more = True
    with _terminated_as_interrupted(), _ended_with_this(at_work):
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
    """Several processes that each take all cores stand in each other's way; a number of threads that is set stays."""
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores() // workers))}


def threads_of(environment: Mapping[str, str]) -> int:
    """That a run with these variables beside our own computes with."""
    told = (environment.get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "")).partition(",")[0]
    return int(told) if told.isdecimal() else cores()


def let_orphans_end() -> None:
    """Runs of a process that was killed notice it and end; until then their folders are locked."""
    time.sleep(2 * WATCHED_EVERY)


@contextmanager
def _ended_with_this(at_work: Mapping[Child, Task]) -> Iterator[None]:
    """However this ends, no run goes on without it."""
    try:
        yield
    finally:
        for child in at_work:
            child.ask_to_stop()
        for child in at_work:
            child.end(PATIENCE)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends this as Ctrl-C does."""

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
