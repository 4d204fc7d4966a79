"""Does it fit: bytes that are needed against bytes that are there, with the error of the estimate.

yes        even if the estimate is too low by its stated error
probably   as estimated, but not if it is too low by that much
hardly     only if it is too high
no         not even if it is too high by its stated error: a run is refused
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GIB = 2**30
Answer = Literal["yes", "probably", "hardly", "no"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Memory of one device."""

    needed: int
    available: int
    error: float
    """Share by which the need may be off in either direction."""
    swap: int = 0
    """What a machine can page out: slow, but it fits."""

    @property
    def answer(self) -> Answer:
        if self.needed * (1 + self.error) <= self.available:
            return "yes"
        if self.needed <= self.available:
            return "probably"
        return "hardly" if self.needed * (1 - self.error) <= self.available + self.swap else "no"

    @property
    def fits(self) -> bool:
        """As estimated."""
        return self.needed <= self.available

    @property
    def surely(self) -> int:
        """The most that an estimate may be for its answer to be yes."""
        return int(self.available / (1 + self.error))

    @property
    def refused(self) -> bool:
        return self.answer == "no"

    def sentence(self, devices: int = 1) -> str:
        """`fits: yes, 71 of 80 GiB`"""
        needed, available = size(self.needed), size(self.available)
        if needed.endswith("GiB") and available.endswith("GiB"):
            needed = needed.removesuffix(" GiB")
        return f"fits: {self.answer}, {needed} of {available}" + (" on each device" if devices > 1 else "")


def size(number: float) -> str:
    """Bytes for people.

    >>> [size(n) for n in (0, 3 * 2**20, 1.5 * 2**30, 71 * 2**30)]
    ['0 MiB', '3 MiB', '1.5 GiB', '71 GiB']
    """
    if number < 0.1 * GIB:
        return f"{number / 2**20:,.0f} MiB"
    return f"{number / GIB:,.1f} GiB" if number < 9.95 * GIB else f"{number / GIB:,.0f} GiB"
