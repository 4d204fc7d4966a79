"""The part that runs on a node: an actor that starts one process and relays messages to and from it.

The process is the same program that would run on the trainer's machine, in its own interpreter.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from posttrain.child import LocalChild, LocalEngine, unnamed_memory
from posttrain.rewards.load import MOVED

HEARD = 1.0
"""Seconds after which an actor answers even if its process is silent. The caller learns only then that it exists."""
CHUNK = 1 << 20
"""Bytes per read."""

Begin = Callable[[int, Sequence[int]], LocalChild]
"""Starts a process on the node, given the descriptor that it prints to and those of the memory for its weights."""


@dataclass(frozen=True)
class Said:
    """The output of a process since the last call."""

    channel: bytes
    printed: bytes
    work: float
    """Processor seconds that the process has used so far."""
    closed: bool
    """Whether no more output will come."""
    end: int | None
    """The exit code of the process; None if it has not ended."""


class Host:
    """The actor of one process. `hear`, `said` and `bring` may run concurrently, but each only once at a time."""

    def __init__(self, begin: Begin, moved: Mapping[str, str]) -> None:
        """`moved` maps folders of the trainer's machine to folders here, relative to the working directory."""
        os.environ[MOVED] = json.dumps({folder: os.path.abspath(place) for folder, place in moved.items()})
        sys.path[:] = [place for place in sys.path if not place.startswith(os.path.dirname(str(ray.__file__)))]
        self._memory = unnamed_memory()
        self._printed, theirs = os.pipe()
        os.set_blocking(self._printed, False)
        self._child = begin(theirs, [self._memory] * 2)  # a publication is written only when no one reads the last
        os.close(theirs)
        self._open = {self._child.channel.fileno(), self._printed}
        self._lock = threading.Lock()

    def hear(self, data: bytes) -> None:
        """Send bytes to the process."""
        waiting, channel = memoryview(data), self._child.channel
        with suppress(ConnectionError):  # the process is gone, which `said` reports
            while waiting:
                select.select([], [channel], [])
                waiting = waiting[channel.send(waiting) :]

    def said(self) -> Said:
        """The messages and the printed output of the process, as soon as there are any."""
        ready, _, _ = select.select(self._open, [], [], HEARD)
        channel = self._read(self._child.channel.fileno()) if self._child.channel.fileno() in ready else b""
        printed = self._read(self._printed) if self._printed in ready else b""
        if self._child.channel.fileno() in self._open:
            return Said(channel, printed, self._child.work(), closed=False, end=None)
        end = self._child.end(patience=HEARD)
        return Said(channel, printed + self._read(self._printed), self._child.work(), closed=True, end=end)

    def bring(self, size: int, buckets: Sequence[Any]) -> None:
        """Write a publication of `size` bytes into the memory that an engine reads. Each bucket holds tensors as (name,
        place, bytes)."""
        os.ftruncate(self._memory, size)
        for bucket in buckets:
            for _, start, data in ray.get(bucket):
                view = memoryview(data)
                while view:
                    written = os.pwrite(self._memory, view, start)
                    start, view = start + written, view[written:]

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self._child.signal(number)

    def finish(self) -> None:
        """End the process and everything that it has started."""
        self._child.kill()

    def _read(self, descriptor: int) -> bytes:
        """Read the available bytes. A descriptor at its end is not read again."""
        found = bytearray()
        try:
            while data := os.read(descriptor, CHUNK):
                found += data
            self._open.discard(descriptor)
        except BlockingIOError:
            pass
        except OSError:
            self._open.discard(descriptor)
        return bytes(found)


def begin_worker(output: int, files: Sequence[int]) -> LocalChild:
    """Start a reward worker, as on the trainer's machine."""
    from posttrain.rewards.worker_process import LocalWorker

    return LocalWorker(output)


def begin_rank(output: int, files: Sequence[int], *, file: str, environment: Mapping[str, str]) -> LocalChild:
    """Start a rank, as the launcher does on one machine."""
    told = {**ways_to(ray.util.get_node_ip_address()), **environment, "POSTTRAIN_PARENT": str(os.getpid())}
    return LocalChild(["-m", "posttrain.train.rank", file], output, environment=told)


def ways_to(address: str) -> dict[str, str]:
    """Environment variables with the network interface for ranks, unless they are set: the interface that Ray uses.

    By default ranks would take the first named interface, which may connect only containers."""
    import psutil

    found = [name for name, given in psutil.net_if_addrs().items() if address in [one.address for one in given]]
    return {name: found[0] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if found and name not in os.environ}


def begin_engine(output: int, files: Sequence[int], *, program: str, threads: int) -> LocalChild:
    """Start an engine, as on the trainer's machine."""
    return LocalEngine(program, output, files=files, threads=threads)
