"""A process that a run starts and talks to over a socket. It may be on another machine.

Requests and answers are bytes (`wire.py`). The output of the process goes to a file or pipe that its parent chose, so
it cannot disturb the protocol.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from posttrain import begin
from posttrain.descendants import MARK, kill_tree, new_mark


class Child(Protocol):
    """One process. No method blocks, except that `end` waits for as long as its argument says."""

    channel: socket.socket
    """Non-blocking socket to the process. It reaches its end when the process has ended."""

    delay: float
    """Time until the output of the process arrives here, in seconds."""

    @property
    def there(self) -> bool:
        """Whether the process has been started. Messages that are sent earlier wait."""
        ...

    def end(self, patience: float = 0.0) -> int | str | None:
        """How the process ended: its exit code (negative for a signal), or a sentence if its carrier is gone, perhaps
        because its machine is. None if it still runs after `patience` seconds."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended. A process that has not started yet receives it on its start."""
        ...

    def work(self) -> float:
        """CPU time that the process and its descendants have used so far, in seconds."""
        ...

    def kill(self) -> None:
        """Kill the process and all its descendants immediately."""
        ...


class EngineChild(Child, Protocol):
    """The process of an engine. It reads its weights from memory."""

    def bring(self, number: int) -> None:
        """Copy publication `number` to where the engine reads weights, before the engine receives the next message."""
        ...


LAST_LINES = 2000
"""Size of the end of a log in which the last line is looked for, in bytes."""
Start = Callable[[int], Child]
"""Starts a child that writes its output to this file descriptor. The caller still owns the descriptor."""


class LocalChild:
    """A Python process on this machine. Implements `Child`.

    It has its own session, so that Ctrl-C reaches only its parent. Its standard input ends when the parent has ended.
    """

    there, delay = True, 0.05

    def __init__(
        self,
        arguments: Sequence[str],
        output: int,
        *,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`arguments` of Python. The file descriptors of the channel and of `files` are appended to them."""
        self.channel, theirs = socket.socketpair()
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        self._mark = new_mark()
        descriptors = [theirs.fileno(), *files]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *arguments, *map(str, descriptors)],
                stdin=subprocess.PIPE,  # never written to
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **(environment or {}), MARK: self._mark},
            )
        self.channel.setblocking(False)

    def end(self, patience: float = 0.0) -> int | None:
        """See `Child`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(patience)
        return None

    def signal(self, number: int) -> None:
        """See `Child`."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def work(self) -> float:
        """See `Child`."""
        return work_of(self.process.pid)

    def kill(self) -> None:
        """See `Child`."""
        kill_tree(self.process.pid, self._mark)
        self.process.wait()
        self.channel.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


class LocalEngine(LocalChild):
    """An engine on this machine, which shares the memory of published weights with its trainer. Implements
    `EngineChild`.

    The kernel kills it when the thread that started it ends, even if the engine itself is stopped.
    """

    def __init__(self, program: str, output: int, *, files: Sequence[int], threads: int) -> None:
        """`program` is the module that the process runs; `files` are the descriptors of the published weights."""
        environment = {"OMP_NUM_THREADS": str(threads)}
        super().__init__(["-P", begin.__file__, program], output, files=files, environment=environment)

    def bring(self, number: int) -> None:
        """Do nothing: the engine shares the trainer's memory."""


def unnamed_memory() -> int:
    """The descriptor of a file without a name. On systems with `memfd_create` it is in memory, and the limit of
    /dev/shm does not apply. The file is gone when the last process has closed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def work_of(pid: int) -> float:
    """CPU time that a process and its descendants have used so far, in seconds."""
    import psutil  # takes 30 ms; only engines need it

    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system
    return total


def how_it_ended(end: int | str) -> str:
    """The end of a process (`Child.end`) in words.

    >>> how_it_ended(3), how_it_ended(-9), how_it_ended("its machine is gone")
    ('exited with code 3', 'killed by signal 9 (Killed)', 'its machine is gone')
    """
    if isinstance(end, str):
        return end
    return f"killed by signal {-end} ({signal.strsignal(-end)})" if end < 0 else f"exited with code {end}"


def last_words(end: int | str, log: Path) -> str:
    """How a process ended (`Child.end`), with the last line that it printed if it exited with an error."""
    if isinstance(end, int) and end > 0:
        with suppress(OSError):
            lines = log.read_bytes()[-LAST_LINES:].decode(errors="replace").strip().splitlines()
            if lines:
                return f"{how_it_ended(end)}; its last line: {lines[-1].strip()}"
    return how_it_ended(end)
