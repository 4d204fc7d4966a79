"""One warm worker process, seen from its parent: its pipes, its clock, and the calls that it is making.

The parent keeps the clock. It settles a call that is late or crashes its process, whatever the process does.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posttrain import wire
from posttrain.child import LocalChild, Start, how_it_ended
from posttrain.heartbeat import beat
from posttrain.rewards.calls import ASYNC_GRACE, Outcome, Signature, timed_out
from posttrain.rewards.load import Target

LOAD_TIMEOUT = 120.0
"""Timeout for importing a reward function, in seconds. A first import of torch on a busy machine takes long."""
KEPT_OUTPUT = 4000
"""Bytes to keep of a worker's last output, which is shown if the worker dies or hangs."""
MAX_READS = 64
"""Maximum number of reads, of at most 64 KiB each, that empty the output of a dying worker."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Calls of one function. Each call has its own deadline, counted from the end of the previous call."""

    target: Target
    calls: Sequence[Mapping[str, Any]]
    """Keyword arguments of each call."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeout: float
    is_async: bool = False
    """True if the calls wait together in one worker, each at most `timeout` seconds."""


class Task:
    """A job that was submitted to a pool, and the outcomes of its calls so far. `result` waits for all of them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.abandoned = False
        self._outcomes: dict[int, Outcome] = {}
        self._error: BaseException | None = None
        self._over = threading.Event()
        if not job.calls:
            self._over.set()

    @property
    def over(self) -> bool:
        """Is there nothing left to wait for?"""
        return self._over.is_set()

    def settle(self, number: int, outcome: Outcome) -> None:
        """Enter the outcome of a call."""
        beat("a reward came back")
        self._outcomes[number] = outcome
        if len(self._outcomes) == len(self.job.calls):
            self._over.set()

    def fail(self, error: BaseException) -> None:
        """End the task with an error, which `result` raises."""
        self._error = self._error or error
        self._over.set()

    def wait(self) -> None:
        """Wait until the task is over, whatever ended it."""
        self._over.wait()

    def result(self) -> list[Outcome]:
        """Wait for all outcomes and return one per call, in order. Raises the error that stopped the calls."""
        self.wait()
        if self._error is not None:
            raise self._error
        return [self._outcomes[number] for number in range(len(self.job.calls))]


@dataclass(kw_only=True)
class Chunk:
    """Calls of one task that one worker makes in a row."""

    task: Task
    open: dict[int, None]
    """Numbers of the calls without an outcome, in order."""
    lost: int = 0
    """How often the chunk lost its worker together with the worker's machine."""


class LocalWorker(LocalChild):
    """A worker on this machine. It ends, with all processes that it started, when its standard input closes."""

    def __init__(self, output: int) -> None:
        order = os.environ.get("PYTHONHASHSEED", "0")  # sets have the same order in every worker
        super().__init__(["-m", "posttrain.rewards.worker"], output, environment={"PYTHONHASHSEED": order})


class WorkerProcess:
    """A worker process, its pipes, and the chunk of calls that it is making."""

    def __init__(self, start: Start) -> None:
        self.printed, theirs = os.pipe()
        try:
            self.child = start(theirs)
        finally:
            os.close(theirs)
        os.set_blocking(self.printed, False)
        self.loaded: dict[Target, Signature] = {}
        self.refusal: dict[str, str] = {}
        self.used = False
        """Has it ever been given calls?"""
        self.chunk: Chunk | None = None
        self.finished: Chunk | None = None
        self.deadline = 0.0
        self.dead = False
        self._job = Job(target=Target(name=""), calls=(), timeout=0.0)
        self._outgoing = memoryview(b"")
        self._incoming, self._output = bytearray(), bytearray()
        self._prints = True
        self._answers: list[tuple[int, Outcome]] = []
        self._since = 0.0

    def begin(self, chunk: Chunk) -> None:
        """Queue the request. The clock of its first call starts when the worker reports that the function is loaded.

        DataError for arguments that cannot be sent.
        """
        job = chunk.task.job
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
        self.used = True
        self.chunk, self.finished, self._job, self.refusal = chunk, None, job, {}
        self._output.clear()
        self._start_clock(LOAD_TIMEOUT if job.target not in self.loaded else job.timeout)

    def register(self, selector: selectors.BaseSelector) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        selector.register(self.child.channel, wanted, self._talk)
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
        """The outcome of a late call, with the line at which it hangs."""
        if self._job.target not in self.loaded:
            message = f"importing {self._job.target} took more than {LOAD_TIMEOUT:g} s"
            return Outcome(kind="timeout", message=message, traceback=self._where(), seconds=self.seconds)
        return timed_out(self._job.timeout, self.seconds, self._where())

    def crash(self) -> Outcome:
        """The outcome of the call during which the process ended."""
        return Outcome(kind="crash", message=self.death(), traceback=self.output(), seconds=self.seconds)

    @property
    def lost(self) -> bool:
        """Was the process lost together with its machine, so that the current call is not to blame?"""
        return self.dead and isinstance(self.child.end(patience=1.0), str)

    def death(self) -> str:
        """How the process ended."""
        if (end := self.child.end(patience=1.0)) is None:
            return "the reward process closed its connection"
        if isinstance(end, str):
            return f"the reward process is lost: {end}"
        return f"the reward process {'was ' * (end < 0)}{how_it_ended(end)}"

    def output(self, patience: int = 0) -> str:
        """The last output of the process. Waits for more output until none has come for `patience` milliseconds."""
        printed = select.poll()
        printed.register(self.printed, select.POLLIN)
        for _ in range(MAX_READS):  # it may never stop printing
            if not (printed.poll(patience) and self._read_output()):
                break
        return bytes(self._output).decode(errors="replace").strip()

    def _where(self) -> str:
        """Its output and the line at which it hangs. faulthandler answers even if C code holds the interpreter lock."""
        self.child.signal(signal.SIGUSR1)
        return _without_our_frames(self.output(patience=round(1000 * self.child.delay)))

    def kill(self) -> None:
        """SIGKILL the worker and all processes that user code started, and reap the worker."""
        self.child.kill()
        os.close(self.printed)

    def _start_clock(self, timeout: float) -> None:
        self._since = time.monotonic()
        self.deadline = self._since + timeout + (ASYNC_GRACE if self._job.is_async else 0.0)

    def _talk(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._outgoing = self._outgoing[self.child.channel.send(self._outgoing) :]
            if events & selectors.EVENT_READ:
                received = self.child.channel.recv(1 << 20)
                if not received:
                    raise ConnectionResetError
                self._incoming += received
        except BlockingIOError:
            return
        except ConnectionError:  # it died; its earlier answers count
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
        if message.get("done"):
            assert not self.chunk.open
            self.chunk, self.finished = None, self.chunk

    def _read_output(self) -> bool:
        """Empty the output pipe and keep the end of the output. False if there was none."""
        try:
            read = os.read(self.printed, 1 << 16)
        except BlockingIOError:
            return False
        self._prints = bool(read)  # an empty read means that the other end was closed
        self._output += read
        del self._output[:-KEPT_OUTPUT]
        return self._prints


def _without_our_frames(trace: str) -> str:
    """The output of faulthandler without the frames that called the user's code."""
    ours = (str(Path(__file__).parent), "<frozen ")
    lines = [line for line in trace.splitlines() if not any(place in line for place in ours)]
    return re.sub(
        r"(?m)^(Current t|T)hread 0x.*\(most recent call first\):$",
        "It hung here, innermost call first:",
        "\n".join(lines),
    )


def kill_all(workers: list[WorkerProcess]) -> None:
    while workers:
        workers.pop().kill()
