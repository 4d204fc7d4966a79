"""Make the calls of a component while further completions are still being sampled.

A batch of calls (`call_batch.py`) is added as soon as it exists. Worker processes get each batch immediately. An
endpoint, an async function and a sandbox make many calls at the same time: they take all batches that have arrived when
the previous ones are done. A model that computes in this process, on the trainer's processors, waits for the end.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from posttrain.rewards.calls import Outcome, Runner

if TYPE_CHECKING:
    from posttrain.rewards.call_batch import CallBatch
    from posttrain.rewards.components import Component
    from posttrain.rewards.pool import WorkerPool
    from posttrain.rewards.worker_process import Task


class Dispatcher(ABC):
    """Fills the batches of one component."""

    @abstractmethod
    def add(self, batch: CallBatch) -> None:
        """Queue a batch; its calls begin when its turn comes. Raises the error of an earlier batch."""

    def close(self) -> None:  # noqa: B027 - nothing is held back
        """Announce that no more batches will be added."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all batches are filled. Raises the error that kept a batch from being filled."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop the calls: nobody will read the batches."""


def open_dispatcher(component: Component, pool: WorkerPool) -> Dispatcher:
    """The dispatcher that fits the way in which a component's calls are made."""
    if component.target is not None:
        return AsyncDispatcher(component, pool) if component.signature.is_async else PoolDispatcher(component, pool)
    if component.judge is not None and component.judge.is_remote:
        return JudgeDispatcher(component)
    if component.runner is not None:
        return RunnerDispatcher(component, component.runner)
    return LastDispatcher(component)


class PoolDispatcher(Dispatcher):
    """Calls in worker processes, queued in the order of arrival."""

    def __init__(self, component: Component, pool: WorkerPool) -> None:
        self._component, self._pool = component, pool
        self._begun: list[tuple[CallBatch, Task]] = []

    def add(self, batch: CallBatch) -> None:
        self._begun.append((batch, self._pool.submit(self._component.job(batch.open_calls))))

    def wait(self) -> None:
        while self._begun:
            batch, task = self._begun[0]
            batch.settle(task.result())
            del self._begun[0]

    def abandon(self) -> None:
        self._pool.abandon(task for _, task in self._begun)


class ThreadDispatcher(Dispatcher):
    """Fills batches in a thread, which takes all that have arrived."""

    def __init__(self, fill: Callable[[Sequence[CallBatch]], None], *, held: bool = False, spare: bool = False) -> None:
        """`held`: begin only at `close`. `spare`: batches that wait at `close` get a second thread at that moment."""
        self._fill, self._held, self._spare = fill, held, spare
        self._waiting: list[CallBatch] = []
        self._working = 0
        self._error: BaseException | None = None
        self._over = threading.Event()
        """Set when nobody will read the batches any more."""
        self._changed = threading.Condition()

    def add(self, batch: CallBatch) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            self._waiting.append(batch)
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
        while batches := self._take():
            try:
                self._fill(batches)
            except BaseException as error:  # `wait` raises it
                with self._changed:
                    self._error = self._error or error
                    self._waiting.clear()

    def _take(self) -> list[CallBatch]:
        with self._changed:
            batches, self._waiting = self._waiting, []
            if not batches:
                self._working -= 1
                self._changed.notify_all()
            return batches


class AsyncDispatcher(ThreadDispatcher):
    """Async calls, which wait together in one worker process. The last batches may get a second process."""

    def __init__(self, component: Component, pool: WorkerPool) -> None:
        super().__init__(self._submit, held=pool.size == 1, spare=True)
        self._component, self._pool = component, pool
        self._tasks: list[Task] = []

    def abandon(self) -> None:
        super().abandon()
        self._pool.abandon(self._tasks)

    def _submit(self, batches: Sequence[CallBatch]) -> None:
        calls = [call for batch in batches for call in batch.open_calls]
        task = self._pool.submit(self._component.job(calls))
        self._tasks.append(task)
        if self._over.is_set():  # `abandon` came before there was a task to give up
            self._pool.abandon([task])
        settle(batches, task.result())


class RunnerDispatcher(ThreadDispatcher):
    """Calls that a runner makes in its own threads or processes."""

    def __init__(self, component: Component, runner: Runner) -> None:
        super().__init__(self._run)
        self._component, self._runner = component, runner

    def _run(self, batches: Sequence[CallBatch]) -> None:
        calls = [call for batch in batches for call in batch.open_calls]
        settle(batches, self._runner.run(calls, self._component.settings, self._component.timeout, self._over))


class JudgeDispatcher(ThreadDispatcher):
    """Questions to an endpoint. If only one at a time is allowed, they keep their order, and so does the budget."""

    def __init__(self, component: Component) -> None:
        assert component.judge is not None
        super().__init__(self._ask, spare=component.judge.settings.concurrency > 1)
        self._judge = component.judge

    def abandon(self) -> None:
        super().abandon()
        self._judge.abandon()

    def _ask(self, batches: Sequence[CallBatch]) -> None:
        for batch, graded in zip(batches, self._judge.grade([batch.open_calls for batch in batches]), strict=True):
            batch.settle(*graded)


class LastDispatcher(Dispatcher):
    """Calls of a model in this process. They run after sampling has ended, in the thread that waits."""

    def __init__(self, component: Component) -> None:
        self._component = component
        self._sheets: list[CallBatch] = []

    def add(self, batch: CallBatch) -> None:
        self._sheets.append(batch)

    def wait(self) -> None:
        for batch in self._sheets:
            if (model := self._component.model) is not None:
                batch.settle(model(batch.open_calls))
            else:
                assert self._component.judge is not None
                batch.settle(*self._component.judge(batch.open_calls))
        self._sheets.clear()

    def abandon(self) -> None:
        self._sheets.clear()


def settle(batches: Sequence[CallBatch], outcomes: Sequence[Outcome]) -> None:
    """Distribute the outcomes over the open calls of all these batches, in order."""
    left = list(outcomes)
    for batch in batches:
        count = len(batch.open)
        batch.settle(left[:count])
        left = left[count:]
