"""A few warm worker processes that can be killed, and the loop that sends them calls.

Why not a pool of the standard library: a running future of `concurrent.futures` cannot be cancelled, and a timeout
inside the worker (SIGALRM, an exception thrown into a thread) cannot interrupt C code that holds the interpreter lock.
Here the parent keeps the clock and SIGKILLs the whole process group. The next call gets a fresh worker.

While there is work, one thread of the parent serves all workers, and no other thread touches them. It sleeps in a
system call between two messages, so that the caller can go on: sample the next completions.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from posttrain.child import Start
from posttrain.control_groups import cores
from posttrain.errors import ConfigError, RewardError
from posttrain.rewards.calls import Abandoned, Outcome, Signature
from posttrain.rewards.load import Target
from posttrain.rewards.worker_process import (
    LOAD_TIMEOUT,
    Chunk,
    Job,
    LocalWorker,
    Task,
    WorkerProcess,
    kill_all,
)

CHUNKS_PER_WORKER = 4
"""Calls are sent in about this many portions per worker: few messages, and no worker idles while another is slow."""


LOOK = 0.1
"""Seconds between two checks whether a worker on another machine has started."""
ATTEMPTS = 3
"""Number of attempts for calls whose worker was lost together with its machine."""


class WorkerPool:
    """At most `size` workers, started when first needed. Use as a context manager, or call `close`.

    Safe to share between threads.
    """

    def __init__(self, size: int | None = None, start: Start = LocalWorker) -> None:
        """`start` is the function that starts a worker's process."""
        self.size, self._start = size or min(4, cores()), start
        self._workers: list[WorkerProcess] = []
        self._driving = threading.Lock()
        """Held by the thread that talks to the workers."""
        self._lock = threading.Lock()
        """Guards the attributes below."""
        self._arrived: list[Task] = []
        self._tasks: list[Task] = []
        """Tasks that the thread has taken in and that are not over."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._bell: socket.socket | None = None
        """Socket that wakes the thread: any byte written to it does."""
        self._waiting: deque[Chunk] = deque()
        self._never_started = 0
        """Number of workers that ended before they were given a call, since the last worker that was given one."""
        self._finalizer = weakref.finalize(self, kill_all, self._workers)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all unfinished tasks and kill every worker. The pool starts new workers when it is used again."""
        self._closing = True
        with self._lock:
            self._ring()
        with self._driving:
            kill_all(self._workers)
            self._closing = False

    def describe(self, target: Target) -> Signature:
        """Import the function in a worker and return its signature. ConfigError if the import fails."""
        with self._driving:
            while (worker := self._free_worker(target)) is None:
                time.sleep(LOOK)  # a worker is being started
            try:
                worker.begin(Chunk(task=Task(Job(target=target, calls=(), timeout=LOAD_TIMEOUT)), open={}))
                while worker.chunk is not None:
                    self._step([worker])
                    if worker.dead or time.monotonic() > worker.deadline:
                        end = worker.death() if worker.dead else f"no end after {LOAD_TIMEOUT:g} s"
                        raise ConfigError(given=f"importing {target} failed: {end}", fix=worker.output())
            except BaseException:
                self._discard(worker)
                raise
            if worker.refusal:
                raise ConfigError(**worker.refusal)
            return worker.loaded[target]

    def run(self, jobs: Sequence[Job]) -> list[list[Outcome]]:
        """Make all calls of all jobs, distributed over the workers. Return one outcome per call, in order.

        If a call hangs or kills its worker, no other call suffers: the calls after it go to another worker.
        """
        tasks = [self.submit(job) for job in jobs]
        try:
            return [task.result() for task in tasks]
        except BaseException:
            self.abandon(tasks)
            raise

    def submit(self, job: Job) -> Task:
        """Queue the calls of a job behind all earlier ones and return without waiting."""
        task = Task(job)
        if task.over:
            return task
        with self._lock:
            self._arrived.append(task)
            if self._thread is None:
                self._bell, woken = socket.socketpair()
                self._thread = threading.Thread(target=self._serve, args=(woken,), name="reward pool", daemon=True)
                self._thread.start()
            else:
                self._ring()
        return task

    def abandon(self, tasks: Iterable[Task]) -> None:
        """Give up tasks whose results nobody needs. Workers that make their calls are killed when this returns."""
        tasks = list(tasks)
        with self._lock:
            for task in tasks:
                task.abandoned = True
            self._ring()
        for task in tasks:
            task.wait()

    def _ring(self) -> None:
        if self._bell is not None:
            with suppress(BlockingIOError):
                self._bell.send(b"\0", socket.MSG_DONTWAIT)

    def _serve(self, woken: socket.socket) -> None:
        """Serve the workers until there is no work left."""
        with self._driving, woken:
            try:
                while self._take_in():
                    self._hand_out()
                    if (busy := self._busy()) or self._waiting:
                        self._step(busy, woken, LOOK if self._waiting and self._starting() else None)
                    for worker in busy:
                        self._collect(worker)
            except BaseException as error:  # for example, no more processes can be started
                self._end(error)

    def _take_in(self) -> bool:
        """Take in new tasks and drop abandoned ones. False ends the thread's work."""
        with self._lock:
            new, self._arrived = self._arrived, []
            self._tasks = [task for task in [*self._tasks, *new] if not task.over or task.abandoned]
            self._waiting.extend(chunk for task in new for chunk in self._chunks(task))
            if unwanted := [task for task in self._tasks if task.abandoned or self._closing]:
                self._drop(unwanted)
            if self._tasks or (self._busy() and not self._closing):
                return True
            self._dismiss()
            return False

    def _drop(self, unwanted: Sequence[Task]) -> None:
        for worker in self._busy():
            if worker.chunk is not None and worker.chunk.task in unwanted:
                self._discard(worker)
        self._waiting = deque(chunk for chunk in self._waiting if chunk.task not in unwanted)
        self._tasks = [task for task in self._tasks if task not in unwanted]
        for task in unwanted:
            task.fail(Abandoned())

    def _end(self, error: BaseException) -> None:
        """Let all tasks fail with `error`: there will be no more outcomes."""
        with self._lock:
            for worker in self._busy():
                self._discard(worker)
            self._waiting.clear()
            for task in [*self._tasks, *self._arrived]:
                task.fail(error)
            self._tasks, self._arrived = [], []
            self._dismiss()

    def _dismiss(self) -> None:
        assert self._bell is not None
        self._bell.close()
        self._thread = self._bell = None

    def _chunks(self, task: Task) -> list[Chunk]:
        """Split a job into chunks for the workers. An async job stays whole."""
        job = task.job
        size = len(job.calls) if job.is_async else -(-len(job.calls) // (self.size * CHUNKS_PER_WORKER))
        calls = range(len(job.calls))
        return [Chunk(task=task, open=dict.fromkeys(calls[i : i + size])) for i in range(0, len(calls), size)]

    def _hand_out(self) -> None:
        while self._waiting and (worker := self._free_worker(self._waiting[0].task.job.target)):
            chunk = self._waiting.popleft()
            if chunk.task.abandoned:
                continue
            try:
                worker.begin(chunk)
                self._never_started = 0
            except Exception as error:  # arguments that cannot be sent
                chunk.task.fail(error)
                chunk.task.abandoned = True

    def _collect(self, worker: WorkerProcess) -> None:
        """Take a worker's answers. If it died or is late, discard it and settle the call that it was making."""
        chunk = worker.chunk or worker.finished
        assert chunk is not None
        task = chunk.task
        for number, outcome in worker.take_answers():
            task.settle(number, outcome)
        late = worker.chunk is not None and time.monotonic() > worker.deadline
        if not (late or worker.dead):
            return
        lost, verdict = worker.lost, worker.crash() if worker.dead else worker.timeout()
        self._discard(worker)
        if lost and chunk.open and chunk.lost + 1 < ATTEMPTS:
            self._waiting.appendleft(Chunk(task=task, open=chunk.open, lost=chunk.lost + 1))
            return
        suspects = list(chunk.open)
        if not suspects:  # it died after its last answer
            return
        if task.job.is_async and len(suspects) > 1:  # unknown which of them caused it: try each alone
            self._waiting.extendleft(Chunk(task=task, open={call: None}) for call in reversed(suspects))
            return
        task.settle(suspects[0], verdict)
        if suspects[1:]:
            self._waiting.appendleft(Chunk(task=task, open=dict.fromkeys(suspects[1:])))

    def _busy(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.chunk is not None]

    def _free_worker(self, target: Target) -> WorkerProcess | None:
        """An idle worker, preferably one that has loaded the function; else a new one if there is room; else None."""
        for worker in [worker for worker in self._workers if worker.chunk is None]:
            if (end := worker.child.end()) is not None:
                self._discard(worker)
                self._note_end(worker, end)
        idle = [worker for worker in self._workers if worker.chunk is None]
        idle.sort(key=lambda worker: target not in worker.loaded)
        if len(self._workers) < self.size and not (idle and target in idle[0].loaded):
            idle.insert(0, self._start_worker())
        return next((worker for worker in idle if worker.child.there), None)

    def _note_end(self, worker: WorkerProcess, end: int | str) -> None:
        """Raise RewardError if no machine can start a worker any more."""
        self._never_started += not worker.used
        if isinstance(end, str) and self._never_started > self.size:
            raise RewardError(
                given=f"no reward worker could be started: {end}",
                allowed="at least one",
                fix="Check the nodes of the cluster, or set cluster.reward_workers = 0 to compute rewards on "
                "the trainer's machine.",
            )

    def _starting(self) -> bool:
        """Is there a worker that cannot accept calls yet?"""
        return not all(worker.child.there for worker in self._workers)

    def _start_worker(self) -> WorkerProcess:
        worker = WorkerProcess(self._start)
        self._workers.append(worker)
        return worker

    def _discard(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._workers.remove(worker)

    @staticmethod
    def _step(
        workers: Sequence[WorkerProcess], woken: socket.socket | None = None, at_most: float | None = None
    ) -> None:
        """Wait until a worker sends something, the next deadline passes, the bell rings or `at_most` seconds are over.
        Then read and write the bytes that are due."""
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                worker.register(selector)
            if woken is not None:
                selector.register(woken, selectors.EVENT_READ, lambda _: woken.recv(1 << 12))
            deadline = min((worker.deadline for worker in workers), default=math.inf)
            timeout = min(deadline - time.monotonic(), math.inf if at_most is None else at_most)
            for key, events in selector.select(max(timeout, 0.0) if timeout < math.inf else None):
                key.data(events)
