"""The limits of a program, and the facts known about it when it has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from posttrain.errors import ConfigError

Ended = Literal["exited", "wall", "cpu", "memory", "output", "signal"]
"""How a program ended.

    exited   by itself, with `returncode`
    wall     killed when its wall-clock time was over
    cpu      killed when its processor time was used up
    memory   a MemoryError that it did not catch
    output   killed because it wrote more than it may
    signal   killed by another signal: it crashed
"""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one program. Processes, files and network have no number: there are none."""

    wall: float = 4.0
    """Seconds from its start to its end."""
    cpu: float = 3.0
    """Seconds of processor time over all threads, rounded up to whole ones."""
    memory: int = 1 << 30
    """Bytes of address space."""
    output: int = 1 << 16
    """Bytes of stdout and stderr together."""
    message: int = 1 << 24
    """Bytes that it may send over its channel, all messages together."""

    def __post_init__(self) -> None:
        for name in ("wall", "cpu", "memory", "output", "message"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    given=f"sandbox limit {name} = {value}", allowed="a positive number", fix=f"Set {name} above 0."
                )

    @property
    def seconds_of_cpu(self) -> int:
        """As the kernel counts them."""
        return math.ceil(self.cpu)

    def to_request(self) -> dict[str, Any]:
        """Those that hold inside of the sandbox; output and messages are counted where they arrive."""
        return {"wall": self.wall, "cpu": self.seconds_of_cpu, "memory": self.memory}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A program that has ended; no process of it is left."""

    returncode: int
    """Its exit code, or minus the number of the signal that killed it."""
    ended: Ended
    stdout: bytes
    stderr: bytes
    result: bytes | None
    """The message that it sent over its channel, if it sent exactly one that `receive` has not taken."""
    messages: tuple[bytes, ...] = field(default=(), repr=False)
    """All that it sent and `receive` has not taken."""
    seconds: float
    """Wall-clock time from its start to its end."""
