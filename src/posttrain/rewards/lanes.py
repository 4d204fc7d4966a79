"""How the calls of a component are made while others are still being asked for.

A sheet of calls (`sheet.py`) is added as soon as there is one. Worker processes take each at once. What works by itself
on many calls side by side (an endpoint, an async function, a sandbox) takes as many sheets at a time as have arrived
when it is done with the last ones. What computes in this process with the trainer's processors waits for the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from posttrain.rewards.calls import Outcome, Runner

if TYPE_CHECKING:
    from posttrain.rewards.components import Component
    from posttrain.rewards.pool import WorkerPool
    from posttrain.rewards.sheet import Sheet
    from posttrain.rewards.worker_process import Task


class Lane(Protocol):
    """Fills the sheets of one component."""

    def add(self, sheet: Sheet) -> None:
        """Begin with it as soon as its turn has come. Raises what an earlier sheet has run into."""
        ...

    def close(self) -> None:
        """There will be no more sheets."""
        ...

    def wait(self) -> None:
        """Until all sheets are filled; raises what kept one from it."""
        ...

    def abandon(self) -> None:
        """Stop: nobody will look at the sheets."""
        ...


def open_lane(component: Component, pool: WorkerPool) -> Lane:
    """The lane for a component, whatever makes its calls."""
    if component.target is not None:
        return AsyncLane(component, pool) if component.signature.is_async else PoolLane(component, pool)
    if component.judge is not None and component.judge.is_remote:
        return JudgeLane(component)
    if component.runner is not None:
        return RunnerLane(component, component.runner)
    return LastLane(component)


class PoolLane:
    """Calls in worker processes, queued in the order of arrival."""

    def __init__(self, component: Component, pool: WorkerPool) -> None:
        self._component, self._pool = component, pool
        self._begun: list[tuple[Sheet, Task]] = []

    def add(self, sheet: Sheet) -> None:
        self._begun.append((sheet, self._pool.submit(self._component.job(sheet.open_calls))))

    def close(self) -> None:
        """Nothing was held back."""

    def wait(self) -> None:
        while self._begun:
            sheet, task = self._begun[0]
            sheet.settle(task.result())
            del self._begun[0]

    def abandon(self) -> None:
        self._pool.abandon(task for _, task in self._begun)


class ThreadLane:
    """Sheets filled by a thread, as many at a time as have arrived."""

    def __init__(self, fill: Callable[[Sequence[Sheet]], None], *, held: bool = False, spare: bool = False) -> None:
        """`held`: begin when the lane is closed. `spare`: what is left then does not wait for what is under way."""
        self._fill, self._held, self._spare = fill, held, spare
        self._waiting: list[Sheet] = []
        self._working = 0
        self._error: BaseException | None = None
        self._over = threading.Event()
        """Nobody will look at the sheets."""
        self._changed = threading.Condition()

    def add(self, sheet: Sheet) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            self._waiting.append(sheet)
            if self._working == 0 and not self._held:
                self._start()

    def close(self) -> None:
        with self._changed:
            if self._waiting and self._working <= self._spare:
                self._start()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0)
            if self._error is not None:
                raise self._error

    def abandon(self) -> None:
        self._over.set()
        with self._changed:
            self._waiting.clear()

    def _start(self) -> None:
        self._working += 1
        threading.Thread(target=self._work, name="rewards", daemon=True).start()

    def _work(self) -> None:
        while sheets := self._take():
            try:
                self._fill(sheets)
            except BaseException as error:  # whoever waits raises it
                with self._changed:
                    self._error = self._error or error
                    self._waiting.clear()

    def _take(self) -> list[Sheet]:
        with self._changed:
            sheets, self._waiting = self._waiting, []
            if not sheets:
                self._working -= 1
                self._changed.notify_all()
            return sheets


class AsyncLane(ThreadLane):
    """Calls that wait together in one worker process; those of the last sheets in another one, if there may be one."""

    def __init__(self, component: Component, pool: WorkerPool) -> None:
        super().__init__(self._submit, held=pool.size == 1, spare=True)
        self._component, self._pool = component, pool
        self._tasks: list[Task] = []

    def abandon(self) -> None:
        super().abandon()
        self._pool.abandon(self._tasks)

    def _submit(self, sheets: Sequence[Sheet]) -> None:
        calls = [call for sheet in sheets for call in sheet.open_calls]
        task = self._pool.submit(self._component.job(calls))
        self._tasks.append(task)
        if self._over.is_set():  # since before there was a task to give up
            self._pool.abandon([task])
        settle(sheets, task.result())


class RunnerLane(ThreadLane):
    """Calls that are made by what has threads or processes of its own."""

    def __init__(self, component: Component, runner: Runner) -> None:
        super().__init__(self._run)
        self._component, self._runner = component, runner

    def _run(self, sheets: Sequence[Sheet]) -> None:
        calls = [call for sheet in sheets for call in sheet.open_calls]
        settle(sheets, self._runner.run(calls, self._component.settings, self._component.timeout, self._over))


class JudgeLane(ThreadLane):
    """Questions to an endpoint; one at a time where no more are allowed, so that a budget is spent in order."""

    def __init__(self, component: Component) -> None:
        assert component.judge is not None
        super().__init__(self._ask, spare=component.judge.settings.concurrency > 1)
        self._judge = component.judge

    def abandon(self) -> None:
        super().abandon()
        self._judge.abandon()

    def _ask(self, sheets: Sequence[Sheet]) -> None:
        for sheet, graded in zip(sheets, self._judge.grade([sheet.open_calls for sheet in sheets]), strict=True):
            sheet.settle(*graded)


class LastLane:
    """A model in this process, once nothing is sampled any more: in the thread that waits."""

    def __init__(self, component: Component) -> None:
        self._component = component
        self._sheets: list[Sheet] = []

    def add(self, sheet: Sheet) -> None:
        self._sheets.append(sheet)

    def close(self) -> None:
        """Nothing to begin with."""

    def wait(self) -> None:
        for sheet in self._sheets:
            if (model := self._component.model) is not None:
                sheet.settle(model(sheet.open_calls))
            else:
                assert self._component.judge is not None
                sheet.settle(*self._component.judge(sheet.open_calls))
        self._sheets.clear()

    def abandon(self) -> None:
        self._sheets.clear()


def settle(sheets: Sequence[Sheet], outcomes: Sequence[Outcome]) -> None:
    """Deal out the outcomes of the open calls of all these sheets."""
    left = list(outcomes)
    for sheet in sheets:
        count = len(sheet.open)
        sheet.settle(left[:count])
        left = left[count:]
