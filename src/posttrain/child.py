"""A process that a run starts beside its own and talks to over a socket; it may be on another machine.

What it is told and what it answers are bytes (`wire.py`). What it prints goes to a file or a pipe of whoever started
it, and never meets the protocol.
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
    """One process. No call waits for it, save `end` as long as it is asked to."""

    channel: socket.socket
    """To and from it, not blocking. It ends when the process has gone."""

    delay: float
    """Seconds in which what it prints arrives."""

    @property
    def there(self) -> bool:
        """Has it been started? What is sent before that waits."""
        ...

    def end(self, patience: float = 0.0) -> int | str | None:
        """How it ended: its exit code (below 0: minus the signal), or a sentence where what carried it is gone, with
        its machine perhaps. None: after so many seconds it has not."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended; one that has not been started yet gets it then."""
        ...

    def work(self) -> float:
        """Processor seconds that it and what it has started have taken so far."""
        ...

    def kill(self) -> None:
        """End it, and whatever it has started, at once."""
        ...


class EngineChild(Child, Protocol):
    """The process of an engine, which reads weights from memory."""

    def bring(self, number: int) -> None:
        """See that this publication lies where it reads them, before it hears what is said next."""
        ...


LAST_LINES = 2000
"""Bytes of a log, the last of whose lines is quoted."""
Start = Callable[[int], Child]
"""Starts one; what it prints goes to this file descriptor, which stays the caller's."""


class LocalChild:
    """A Python process on this machine. Implements `Child`.

    It has a session of its own, so that Ctrl-C is for whoever started it, and its standard input ends when that one
    has gone.
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
        """`arguments` of Python, behind which come the file descriptors of the channel and of `files`."""
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
    """An engine on this machine, where publications are memory of its trainer's. Implements `EngineChild`.

    It ends with the thread that started it, even where it does not notice that.
    """

    def __init__(self, program: str, output: int, *, files: Sequence[int], threads: int) -> None:
        """`program` is the module that it runs, `files` are those of the published weights."""
        environment = {"OMP_NUM_THREADS": str(threads)}
        super().__init__(["-P", begin.__file__, program], output, files=files, environment=environment)

    def bring(self, number: int) -> None:
        """It is there."""


def unnamed_memory() -> int:
    """The descriptor of a file without a name: memory where the system has such files, whatever /dev/shm is limited
    to. It is gone when the last process has closed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def work_of(pid: int) -> float:
    """Processor seconds that a process and what it has started have taken so far."""
    import psutil  # 30 ms, which only engines take

    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system
    return total


def how_it_ended(end: int | str) -> str:
    """
    >>> how_it_ended(3), how_it_ended(-9), how_it_ended("its machine is gone")
    ('exited with code 3', 'killed by signal 9 (Killed)', 'its machine is gone')
    """
    if isinstance(end, str):
        return end
    return f"killed by signal {-end} ({signal.strsignal(-end)})" if end < 0 else f"exited with code {end}"


def last_words(end: int | str, log: Path) -> str:
    """How a process ended (`Child.end`), and the last line that it printed where it gave up by itself."""
    if isinstance(end, int) and end > 0:
        with suppress(OSError):
            lines = log.read_bytes()[-LAST_LINES:].decode(errors="replace").strip().splitlines()
            if lines:
                return f"{how_it_ended(end)}; its last line: {lines[-1].strip()}"
    return how_it_ended(end)
