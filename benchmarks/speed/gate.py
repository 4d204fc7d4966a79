"""How a side takes turns: after each step it reports the measurements and waits until it may continue.

The parent writes a line for each step, and the worker answers with one line of JSON. This file uses only the standard
library, because it runs inside the environment of every library.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

WARM_UP_LENGTH = 8
"""Largest number of tokens of a completion in the warm-up step, which is not measured."""
GOLDEN_RATIO = 0.618034
"""Its multiples modulo 1 are evenly spread, so that no two steps have the same lengths."""


class Memory(Protocol):
    """The memory of a step, and the end of its work."""

    def settle(self) -> None:
        """Wait until the work of the step is finished."""
        ...

    def peaks(self) -> dict[str, int]:
        """Peaks since the last `forget`, in bytes: `peak_bytes`, and other known figures."""
        ...

    def forget(self) -> None:
        """Reset the peaks."""
        ...


class Resident:
    """Main memory of this process and its descendants, as the kernel reports it; empty if it does not."""

    def settle(self) -> None: ...

    def peaks(self) -> dict[str, int]:
        peak = _sum_over_processes("VmHWM")
        return {"peak_bytes": peak} if peak else {}

    def forget(self) -> None:
        _forget_peaks()


class Gate:
    """The gate at the end of each step of a worker. The first step is a warm-up and is not measured."""

    def __init__(self, *, varying: bool = False, memory: Memory | None = None) -> None:
        """`varying`: in each step, shorten the given completions by another factor."""
        self._varying, self._turns, self._memory = varying, 0, memory or Resident()
        self._replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # the output of libraries must not mix with the replies
        self.warm = False
        self._started = time.perf_counter()

    def turn(self, **facts: Any) -> None:
        """Report the step that has just ended, and wait for the request for the next one."""
        self._turns += 1
        self._memory.settle()
        seconds = time.perf_counter() - self._started
        if self.warm:
            self._reply({"seconds": seconds, **self._memory.peaks(), **facts})
        else:
            self.warm = True
            self._reply({"ready": True, "warm_up_seconds": seconds, **facts})
        _give_memory_back()
        if not sys.stdin.readline():
            os._exit(0)
        self._memory.forget()
        self._started = time.perf_counter()

    def lengths(self, lengths: list[int]) -> list[int]:
        """The completion lengths of this step: short in the warm-up, later as given, or varying from half to all."""
        if not self.warm:
            return [min(length, WARM_UP_LENGTH) for length in lengths]
        factor = 0.5 + 0.5 * (self._turns * GOLDEN_RATIO % 1) if self._varying else 1.0
        return [max(1, round(factor * length)) for length in lengths]

    def failed(self, reason: str) -> None:
        self._reply({"error": reason})

    def _reply(self, record: dict[str, Any]) -> None:
        self._replies.write(json.dumps(record) + "\n")
        self._replies.flush()


def _give_memory_back() -> None:
    """Return freed memory to the system, so that the other sides can use it while this one waits."""
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _family() -> list[int]:
    """Ids of this process and its descendants, such as processes that compute rewards."""
    found = [os.getpid()]
    for number in found:
        for task in Path(f"/proc/{number}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:  # the process has ended meanwhile
                continue
    return found


def _forget_peaks() -> None:
    for number in _family():
        try:
            Path(f"/proc/{number}/clear_refs").write_text("5")
        except OSError:
            continue


def _sum_over_processes(field: str) -> int | None:
    """Sum of a memory field over all processes, in bytes; None if the system does not report it. Pages that processes
    share count for each of them."""
    total = 0
    for number in _family():
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
    return total or None
