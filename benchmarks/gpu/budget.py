"""Parts of a measurement within a time: each has seconds of its own, and what does not fit is left out and said.

A part is begun only where its seconds are left, and is stopped when they are over. So the whole ends in time, whatever
hangs; and what was measured until then stays.
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
        """Seconds; never below 0."""
        return max(0.0, self.moment - time.monotonic())


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that is measured."""

    name: str
    seconds: float
    """That it may take."""
    measure: Callable[[Until], dict[str, Any]]
    """Is told by when it has to be done, and returns what it has by then."""


@dataclass
class Report:
    """What became of a part."""

    name: str
    found: dict[str, Any] = field(default_factory=dict)
    took: float = 0.0
    skipped: str = ""
    """Why it was not begun; empty where it was."""
    failed: str = ""
    """How it ended; empty where it came to its end."""


def within(parts: Sequence[Part], budget: float) -> Iterator[Report]:
    """The parts in their order, each reported as soon as it is done. A part that fails leaves the others as they are.

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
