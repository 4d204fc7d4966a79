"""The limits of a program, and the record of a program that has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from posttrain.errors import ConfigError

Ended = Literal["exited", "wall", "cpu", "memory", "output", "signal"]
"""How a program ended.

    exited   on its own, with `returncode`
    wall     killed at its wall-clock limit
    cpu      killed at its limit of processor time
    memory   ended with a MemoryError that it did not catch
    output   killed because it wrote too much
    signal   killed by another signal: it crashed
"""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one program. New processes, files and network access have no limit, because none is allowed."""

    wall: float = 4.0
    """Wall-clock time, in seconds."""
    cpu: float = 3.0
    """Processor time over all threads, in seconds, rounded up to whole seconds."""
    memory: int = 1 << 30
    """Address space, in bytes."""
    output: int = 1 << 16
    """Size of stdout and stderr together, in bytes."""
    message: int = 1 << 24
    """Size of all messages over its channel together, in bytes."""

    def __post_init__(self) -> None:
        for name in ("wall", "cpu", "memory", "output", "message"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    given=f"sandbox limit {name} = {value}", allowed="a positive number", fix=f"Set {name} above 0."
                )

    @property
    def seconds_of_cpu(self) -> int:
        """The limit of processor time in whole seconds, as the kernel counts it."""
        return math.ceil(self.cpu)

    def to_request(self) -> dict[str, Any]:
        """The limits that apply inside the sandbox. The receiver limits output and messages."""
        return {"wall": self.wall, "cpu": self.seconds_of_cpu, "memory": self.memory}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A program that has ended. None of its processes is left."""

    returncode: int
    """The exit code, or minus the number of the signal that killed the program."""
    ended: Ended
    stdout: bytes
    stderr: bytes
    result: bytes | None
    """The message over the channel, if there is exactly one that `receive` has not taken."""
    messages: tuple[bytes, ...] = field(default=(), repr=False)
    """All messages over the channel that `receive` has not taken."""
    seconds: float
    """Wall-clock time from start to end, in seconds."""
