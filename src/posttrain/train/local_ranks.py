"""The ranks of a job as processes on this machine, one per device."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from posttrain.control_groups import cores
from posttrain.ranks.environment import Place, told_to
from posttrain.stopping import SIGNALS

LOOPBACK = "127.0.0.1"
PROGRAM = "posttrain.train.rank"


class LocalRank:
    """A rank as a process on this machine. Implements `RankProcess`."""

    def __init__(self, file: Path, environment: dict[str, str], output: int | None) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # in the rank, until it has imported everything
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(file)],
                env=environment,
                stdout=output,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def end(self) -> int | None:
        """See `RankProcess`."""
        return self.process.poll()

    def signal(self, number: int) -> None:
        """See `RankProcess`."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """See `RankProcess`."""
        if self.process.poll() is None:
            self.process.kill()

    def close(self) -> None:
        """Kill the process and wait until it has ended."""
        self.kill()
        self.process.wait()


class LocalRanks:
    """Starts ranks on this machine. Implements `RankHosts`."""

    def __init__(self, output: int | None) -> None:
        """`output` is the file descriptor that ranks print to; None for the stdout of this process."""
        self._output = output

    def room(self, size: int) -> int:
        """See `RankHosts`."""
        return size

    @contextmanager
    def start(self, file: Path, size: int) -> Iterator[Sequence[LocalRank]]:
        """See `RankHosts`."""
        port = free_port()
        shared = {**os.environ, "POSTTRAIN_PARENT": str(os.getpid())}
        shared.setdefault("OMP_NUM_THREADS", str(max(1, cores() // size)))
        with ExitStack() as started:
            ranks = []
            for number in range(size):
                told = told_to(Place(rank=number, size=size, local=number, beside=size), LOOPBACK, port)
                ranks.append(LocalRank(file, shared | told, self._output))
                started.callback(ranks[-1].close)
            yield ranks


def file_of(stream: Any) -> int | None:
    """The descriptor of the stream that ranks print to, such as stderr if stdout carries JSON; None if it has none."""
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def free_port(address: str = LOOPBACK) -> int:
    """A port on which nobody listens, below the range from which the system takes ports for outgoing connections."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as found, suppress(OSError):
            found.bind((address, port))
            return port
