"""Does an engine that is starting do anything? Imports and loading take processor time, a process that hangs none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SOME_WORK = 0.2
"""Processor seconds: who starts takes more in a moment."""
LOOK = 0.25
"""Seconds between two looks."""


@dataclass
class Starting:
    """One engine, from the moment when it was started."""

    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._since, self._looked, self._done = self.began, self.began, 0.0

    def idle(self, work: Callable[[], float]) -> float:
        """Seconds in which it has done nothing; `work` says what it has done so far."""
        now = time.monotonic()
        if now > self._looked + LOOK:
            self._looked = now
            if abs((done := work()) - self._done) > SOME_WORK:  # less where a helper has ended with what it had done
                self._since, self._done = now, done
        return now - self._since
