"""A few warm worker processes that can be killed, and the loop that hands calls to them.

Why not a ready-made pool: a running future of `concurrent.futures` cannot be cancelled, and a time-out inside the
worker (SIGALRM, an exception thrown into a thread) cannot interrupt C code that holds the interpreter lock. Here the
parent keeps the clock and SIGKILLs the whole process group; the next call gets a fresh worker.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.rewards import wire
from posttrain.rewards.calls import ASYNC_GRACE, Outcome, Signature, timed_out
from posttrain.rewards.load import Target

LOAD_TIMEOUT = 120.0
"""Seconds that importing a reward function may take: a first import of torch on a busy machine takes many."""
CHUNKS_PER_WORKER = 4
"""Calls are handed out in about this many portions per worker: few messages, yet nobody idles while another is slow."""
KEPT_OUTPUT = 4000
"""Bytes kept of what a worker printed last; shown when it dies or hangs."""
MAX_READS = 64
"""Reads of at most 64 KiB with which the output of a dying worker is emptied."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Calls of one function. Each has its own deadline, counted from the end of the call before it."""

    target: Target
    calls: Sequence[Mapping[str, Any]]
    """Keyword arguments of each call."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeout: float
    is_async: bool = False
    """The calls wait together in one worker, each at most `timeout` seconds."""


@dataclass(kw_only=True)
class _Chunk:
    """Calls of one job that one worker makes in a row."""

    job: int
    open: dict[int, None]
    """Numbers of the calls that have no outcome yet, in order."""


class WorkerPool:
    """At most `size` workers, started when first needed. Use as a context manager, or call `close`.

    Safe to share between threads: one `run` at a time.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or min(4, os.cpu_count() or 1)
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker. The pool starts new ones when it is used again."""
        _kill_all(self._workers)

    def describe(self, target: Target) -> Signature:
        """Import the function in a worker and read its signature; ConfigError says why that is not possible."""
        with self._lock:
            worker = self._free_worker(target) or self._start_worker()
            worker.begin(_Chunk(job=0, open={}), Job(target=target, calls=(), timeout=LOAD_TIMEOUT))
            try:
                while worker.chunk is not None:
                    self._step([worker])
                    if worker.dead or time.monotonic() > worker.deadline:
                        end = worker.death() if worker.dead else f"no end after {LOAD_TIMEOUT:g} s"
                        raise ConfigError(given=f"importing {target} did not work: {end}", fix=worker.output())
            except BaseException:
                self._discard(worker)
                raise
            if worker.refusal:
                raise ConfigError(**worker.refusal)
            return worker.loaded[target]

    def run(self, jobs: Sequence[Job]) -> list[list[Outcome]]:
        """Make all calls of all jobs, concurrently over the workers; one outcome per call, in order.

        A call that hangs or kills its worker is the only one that suffers: the calls behind it go to another worker.
        """
        outcomes: list[list[Outcome | None]] = [[None] * len(job.calls) for job in jobs]
        waiting = deque(chunk for number, job in enumerate(jobs) for chunk in self._chunks(number, job))
        with self._lock:
            try:
                while waiting or (busy := self._busy()):
                    while waiting and (worker := self._free_worker(jobs[waiting[0].job].target)):
                        chunk = waiting.popleft()
                        worker.begin(chunk, jobs[chunk.job])
                    busy = self._busy()
                    self._step(busy)
                    for worker in busy:
                        self._collect(worker, jobs, outcomes, waiting)
            except BaseException:
                for worker in self._busy():
                    self._discard(worker)
                raise
        return [[outcome for outcome in row if outcome is not None] for row in outcomes]

    def _chunks(self, number: int, job: Job) -> list[_Chunk]:
        """An async job stays whole; the calls of another are spread over the workers."""
        size = len(job.calls) if job.is_async else -(-len(job.calls) // (self.size * CHUNKS_PER_WORKER))
        calls = range(len(job.calls))
        return [_Chunk(job=number, open=dict.fromkeys(calls[i : i + size])) for i in range(0, len(calls), max(size, 1))]

    def _collect(
        self, worker: _Worker, jobs: Sequence[Job], outcomes: list[list[Outcome | None]], waiting: deque[_Chunk]
    ) -> None:
        """Take what a worker answered; if it died or is late, replace it and settle the call that it was making."""
        chunk = worker.chunk or worker.finished
        assert chunk is not None
        for number, outcome in worker.take_answers():
            outcomes[chunk.job][number] = outcome
        late = worker.chunk is not None and time.monotonic() > worker.deadline
        if not (late or worker.dead):
            return
        job, row = jobs[chunk.job], outcomes[chunk.job]
        verdict = worker.crash() if worker.dead else worker.timeout()
        self._discard(worker)
        suspects = list(chunk.open)
        if not suspects:  # it died after its last answer
            return
        if job.is_async and len(suspects) > 1:  # nobody knows which of them did it: try each alone
            waiting.extendleft(_Chunk(job=chunk.job, open={call: None}) for call in reversed(suspects))
            return
        row[suspects[0]] = verdict
        if suspects[1:]:
            waiting.appendleft(_Chunk(job=chunk.job, open=dict.fromkeys(suspects[1:])))

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.chunk is not None]

    def _free_worker(self, target: Target) -> _Worker | None:
        """An idle worker, rather one that has the function already; a new one while there is room; else None."""
        idle = [worker for worker in self._workers if worker.chunk is None]
        for worker in [worker for worker in idle if worker.process.poll() is not None]:
            self._discard(worker)
            idle.remove(worker)
        idle.sort(key=lambda worker: target not in worker.loaded)
        if idle and (target in idle[0].loaded or len(self._workers) >= self.size):
            return idle[0]
        return self._start_worker() if len(self._workers) < self.size else None

    def _start_worker(self) -> _Worker:
        worker = _Worker()
        self._workers.append(worker)
        return worker

    def _discard(self, worker: _Worker) -> None:
        worker.kill()
        self._workers.remove(worker)

    @staticmethod
    def _step(workers: Sequence[_Worker]) -> None:
        """Wait until a worker has something to say or the next deadline passes; move the bytes."""
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                worker.register(selector)
            timeout = min(worker.deadline for worker in workers) - time.monotonic()
            for key, events in selector.select(max(timeout, 0.0)):
                key.data(events)


class _Worker:
    """One worker process: its pipes, and the chunk that it is working on."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(os.path.abspath(place) for place in sys.path))
        environment.setdefault("PYTHONHASHSEED", "0")  # the same set order in every worker
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "posttrain.rewards.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,  # never written to: the worker dies when it closes
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a process group of its own, which a kill takes as a whole
                env=environment,
            )
        assert self.process.stdout is not None
        self.printed = self.process.stdout.fileno()
        self.channel.setblocking(False)
        os.set_blocking(self.printed, False)
        self.loaded: dict[Target, Signature] = {}
        self.refusal: dict[str, str] = {}
        self.chunk: _Chunk | None = None
        self.finished: _Chunk | None = None
        self.deadline = 0.0
        self.dead = False
        self._job = Job(target=Target(name=""), calls=(), timeout=0.0)
        self._outgoing = memoryview(b"")
        self._incoming, self._output = bytearray(), bytearray()
        self._prints = True
        self._answers: list[tuple[int, Outcome]] = []
        self._since = 0.0

    def begin(self, chunk: _Chunk, job: Job) -> None:
        """Queue the request; the clock of its first call starts when the worker says that the function is loaded."""
        self._outgoing = memoryview(
            wire.encode(
                {
                    "target": asdict(job.target),
                    "calls": [(number, job.calls[number]) for number in chunk.open],
                    "settings": job.settings,
                    "timeout": job.timeout,
                }
            )
        )
        self.chunk, self.finished, self._job, self.refusal = chunk, None, job, {}
        self._output.clear()
        self._start_clock(LOAD_TIMEOUT if job.target not in self.loaded else job.timeout)

    def register(self, selector: selectors.BaseSelector) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        selector.register(self.channel, wanted, self._talk)
        if self._prints:
            selector.register(self.printed, selectors.EVENT_READ, lambda _: self._read_output())

    def take_answers(self) -> list[tuple[int, Outcome]]:
        answers, self._answers = self._answers, []
        return answers

    @property
    def seconds(self) -> float:
        """Seconds since the current call started."""
        return time.monotonic() - self._since

    def timeout(self) -> Outcome:
        """The outcome of the call that is late, with the line at which it hangs."""
        if self._job.target not in self.loaded:
            message = f"importing {self._job.target} took more than {LOAD_TIMEOUT:g} s"
            return Outcome(kind="timeout", message=message, traceback=self._where(), seconds=self.seconds)
        return timed_out(self._job.timeout, self.seconds, self._where())

    def crash(self) -> Outcome:
        """The outcome of the call during which the process ended."""
        return Outcome(kind="crash", message=self.death(), traceback=self.output(), seconds=self.seconds)

    def death(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "the reward process closed its connection"
        if code < 0:
            return f"the reward process was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"the reward process exited with code {code}"

    def output(self, patience: int = 0) -> str:
        """The last that it printed; waits for more until it is silent for `patience` milliseconds."""
        printed = select.poll()
        printed.register(self.printed, select.POLLIN)
        for _ in range(MAX_READS):  # it may never stop printing
            if not (printed.poll(patience) and self._read_output()):
                break
        return bytes(self._output).decode(errors="replace").strip()

    def _where(self) -> str:
        """What it printed and where it hangs: faulthandler answers even while C code holds the interpreter lock."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
        return _without_our_frames(self.output(patience=50))

    def kill(self) -> None:
        """SIGKILL the process group, children of user code included, and reap the worker."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.channel.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _start_clock(self, timeout: float) -> None:
        self._since = time.monotonic()
        self.deadline = self._since + timeout + (ASYNC_GRACE if self._job.is_async else 0.0)

    def _talk(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._outgoing = self._outgoing[self.channel.send(self._outgoing) :]
            if events & selectors.EVENT_READ:
                received = self.channel.recv(1 << 20)
                if not received:
                    raise ConnectionResetError
                self._incoming += received
        except BlockingIOError:
            return
        except ConnectionError:  # it died; what it had answered before counts
            self.dead = True
        for message in wire.decode(self._incoming):
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        assert self.chunk is not None
        if "ready" in message:
            self.loaded[self._job.target] = Signature.from_json(message["ready"])
            self._start_clock(self._job.timeout)
        elif "failed" in message:
            self.refusal = message["failed"]
            refused = Outcome(kind="exception", message=self.refusal["given"], traceback=self.refusal["fix"])
            self._answers += [(number, refused) for number in self.chunk.open]
            self.chunk.open.clear()
        elif "call" in message:
            self._answers.append((message["call"], Outcome(**message["outcome"])))
            del self.chunk.open[message["call"]]
            if not self._job.is_async:
                self._start_clock(self._job.timeout)
        else:  # done
            assert not self.chunk.open
            self.chunk, self.finished = None, self.chunk

    def _read_output(self) -> bool:
        """Empty the output pipe, keeping the end of it; False when there was nothing."""
        try:
            read = os.read(self.printed, 1 << 16)
        except BlockingIOError:
            return False
        self._prints = bool(read)  # nothing at all means that the other end was closed
        self._output += read
        del self._output[:-KEPT_OUTPUT]
        return self._prints


def _without_our_frames(trace: str) -> str:
    """What faulthandler printed, without the frames that called the user's code."""
    ours = (str(Path(__file__).parent), "<frozen ")
    lines = [line for line in trace.splitlines() if not any(place in line for place in ours)]
    return re.sub(
        r"(?m)^(Current t|T)hread 0x.*\(most recent call first\):$",
        "It hung here, innermost call first:",
        "\n".join(lines),
    )


def _kill_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().kill()
