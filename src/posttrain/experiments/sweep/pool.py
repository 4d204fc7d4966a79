"""Several runs at once, each in a process of its own, looked after by this one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from posttrain.experiments.children import Child, ChildResult

LOOKED_AFTER_EVERY = 0.5
"""Seconds."""


class Task(Protocol):
    """A run to be done."""

    def start(self) -> Child | None:
        """Its process; None where there is nothing to run, because it had ended before or cannot be run."""
        ...

    def look(self, child: Child) -> None:
        """Called every half second while it runs."""
        ...

    def ended(self, result: ChildResult) -> None: ...


def work(tasks: Iterator[Task], workers: int) -> None:
    """Do the tasks, `workers` at a time; the next is asked for when there is room for it.

    Whatever ends this early, a Ctrl-C above all, lets the runs save and passes on; they can be gone on with.
    """
    at_work: list[tuple[Task, Child]] = []
    more = True
    try:
        while more or at_work:
            while more and len(at_work) < workers:
                task = next(tasks, None)
                more = task is not None
                child = task.start() if task is not None else None
                if task is not None and child is not None:
                    at_work.append((task, child))
            for task, child in list(at_work):
                if child.running:
                    task.look(child)
                else:
                    at_work.remove((task, child))
                    task.ended(child.wait())
            if at_work:
                time.sleep(LOOKED_AFTER_EVERY)
    except BaseException:
        for _, child in at_work:
            child.ask_to_stop()
        for _, child in at_work:
            child.end(60.0)
        raise


def share_of_processor(workers: int) -> Mapping[str, str]:
    """Several processes that each take all cores stand in each other's way; a number of threads that is set stays."""
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
