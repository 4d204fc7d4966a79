"""The ranks of a job as processes of this machine, one for each device."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from posttrain.control_groups import cores
from posttrain.ranks.environment import Place, told_to

LOOPBACK = "127.0.0.1"
PROGRAM = "posttrain.train.rank"


class LocalRank:
    """A process. Implements `RankProcess`."""

    def __init__(self, file: Path, environment: dict[str, str], output: int | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(file)],
            env=environment,
            stdout=output,
            start_new_session=True,
        )

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
        """End it, and wait until it has ended."""
        self.kill()
        self.process.wait()


class LocalRanks:
    """Starts ranks here. Implements `RankHosts`."""

    def __init__(self, output: int | None) -> None:
        """`output` is where ranks print to; None: where this process does."""
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
    """Where ranks are to write, such as stderr where stdout carries JSON; None where that is no file."""
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def free_port(address: str = LOOPBACK) -> int:
    """One of this machine on which nobody listens now, below those that connections take by themselves."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as found, suppress(OSError):
            found.bind((address, port))
            return port
