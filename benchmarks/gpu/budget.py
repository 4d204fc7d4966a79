"""Do the parts of a measurement within a time budget. Each part has a time limit; parts that do not fit are reported.

A part begins only if its whole time is left, and must stop when its time is over. So the whole measurement ends in time
even if something hangs, and the results until then are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Until:
    """A moment of the monotonic clock."""

    moment: float

    @staticmethod
    def after(seconds: float) -> Until:
        return Until(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Time until the moment, in seconds; never below 0."""
        return max(0.0, self.moment - time.monotonic())


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the measurement."""

    name: str
    seconds: float
    """Time limit of the part, in seconds."""
    measure: Callable[[Until], dict[str, Any]]
    """Measures until the given moment, and returns the results that it has by then."""


@dataclass
class Report:
    """The result of a part."""

    name: str
    found: dict[str, Any] = field(default_factory=dict)
    took: float = 0.0
    skipped: str = ""
    """Reason why it was not begun; empty if it was."""
    failed: str = ""
    """Error with which it ended; empty if it was completed."""


def within(parts: Sequence[Part], budget: float) -> Iterator[Report]:
    """Do the parts in order, and report each one as soon as it is done. A part that fails does not affect the others.

    >>> quick = Part(name="quick", seconds=5, measure=lambda until: {"seconds left": until.left > 4})
    >>> long = Part(name="long", seconds=60, measure=lambda until: {})
    >>> [(one.name, one.found, one.skipped) for one in within([long, quick], budget=30)]
    [('long', {}, 'it takes up to 60 s, and 30 s were left'), ('quick', {'seconds left': True}, '')]
    """
    end = Until.after(budget)
    for part in parts:
        if part.seconds > end.left:
            left = f"it takes up to {part.seconds:.0f} s, and {end.left:.0f} s were left"
            yield Report(part.name, skipped=left)
            continue
        began, report = time.monotonic(), Report(part.name)
        try:
            report.found = part.measure(Until.after(part.seconds))
        except Exception as error:
            report.failed = f"{type(error).__name__}: {error}"
        report.took = round(time.monotonic() - began, 1)
        yield report
