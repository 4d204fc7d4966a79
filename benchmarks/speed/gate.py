"""How a side takes turns: it stops after every step until it is told to go on, and says what the step took.

The parent writes a line for each step, the worker answers with one line of JSON. Needs nothing but the standard
library, because it runs inside every library's own environment.
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
"""Most tokens of a completion in the step that is not measured."""
GOLDEN_RATIO = 0.618034
"""Its multiples, taken modulo 1, spread evenly: no two steps have the same lengths."""


class Memory(Protocol):
    """What a step is charged for, and where it ends."""

    def settle(self) -> None:
        """Wait until what the step has asked for is done."""
        ...

    def peaks(self) -> dict[str, int]:
        """Bytes at the worst moment since `forget`: `peak_bytes`, and whatever else is known."""
        ...

    def forget(self) -> None:
        """Begin anew."""
        ...


class Resident:
    """Main memory of this process and its descendants, as the kernel has it; nothing where it does not say."""

    def settle(self) -> None: ...

    def peaks(self) -> dict[str, int]:
        peak = _sum_over_processes("VmHWM")
        return {"peak_bytes": peak} if peak else {}

    def forget(self) -> None:
        _forget_peaks()


class Gate:
    """Stands at the end of every step of a worker. The first step warms up: it is not measured."""

    def __init__(self, *, varying: bool = False, memory: Memory | None = None) -> None:
        """`varying`: the completions of each step are shorter than they are given by another factor."""
        self._varying, self._turns, self._memory = varying, 0, memory or Resident()
        self._replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print must not come between the replies
        self.warm = False
        self._started = time.perf_counter()

    def turn(self, **facts: Any) -> None:
        """Report the step that has just ended, and wait for the next one to be asked for."""
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
        """The completion lengths of this step: as they are, short while it warms up, or varying from half to whole."""
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
    """What a worker has freed is the others' while it waits."""
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _family() -> list[int]:
    """This process and its descendants, such as those that compute rewards."""
    found = [os.getpid()]
    for number in found:
        for task in Path(f"/proc/{number}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:  # it has ended meanwhile
                continue
    return found


def _forget_peaks() -> None:
    for number in _family():
        try:
            Path(f"/proc/{number}/clear_refs").write_text("5")
        except OSError:
            continue


def _sum_over_processes(field: str) -> int | None:
    """Bytes; None where the system does not say. Pages that processes share count for each of them."""
    total = 0
    for number in _family():
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
    return total or None
