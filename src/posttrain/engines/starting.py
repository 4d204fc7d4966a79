"""Detects engines that hang while they start: imports and loading take processor time, a process that hangs none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SOME_WORK = 0.2
"""Processor seconds; an engine that starts uses more than this in a moment."""
LOOK = 0.25
"""Seconds between two looks."""


@dataclass
class Starting:
    """The activity of one engine since it was started."""

    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._since, self._looked, self._done = self.began, self.began, 0.0

    def idle(self, work: Callable[[], float]) -> float:
        """Return the seconds in which it has done nothing; `work` returns its processor seconds so far."""
        now = time.monotonic()
        if now > self._looked + LOOK:
            self._looked = now
            if abs((done := work()) - self._done) > SOME_WORK:  # less if a helper ended and took its seconds along
                self._since, self._done = now, done
        return now - self._since
