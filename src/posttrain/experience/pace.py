"""`train.run_ahead: auto`: the smallest lead that keeps the trainer busy, found by trial during the run.

A run begins one step ahead. While its trainer waits for groups, it tries one more step of lead for a while. If steps
come faster, it keeps that lead and may try the next. If not, it goes back: the engines are already full, and more lead
only makes tokens older. It tries again much later, because lengths change while a policy learns.

This needs no model of the engines. A trial costs a few steps with older tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from posttrain.controller.messages import Asked, Command, Deliver, Event, Lead, Trained

FIRST = 1
"""Steps ahead at the beginning."""
WINDOW = 8
"""Steps over which the pace is measured."""
BUSY = 0.05
"""Share of its time that a busy trainer may spend waiting."""
GAIN = 1.05
"""Factor by which one more step of lead has to raise the pace."""
LATER = 16
"""Windows after which a step of lead that did not help is tried again."""


@dataclass
class Pace:
    """Sees every event and the commands that followed; calls `choose` with each new lead and the reason for it."""

    most: int
    """The maximum lead, which `max_staleness` sets."""
    choose: Callable[[Lead, str], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.lead = FIRST
        self._before: float | None = None
        """Steps per second before the current trial of one more step; None without a trial."""
        self._pause = 0
        """Windows until the next trial."""
        self._begin(settle=FIRST + 1)
        self._asked = self._from = 0.0

    def see(self, event: Event, commands: Iterable[Command]) -> None:
        """Take an event and the commands that followed from it."""
        now = self.clock()
        if isinstance(event, Asked):
            self._asked = now
        if any(isinstance(command, Deliver) for command in commands) and self._settled:
            self._waited += now - self._asked
        if isinstance(event, Trained):
            self._step(now)

    def _begin(self, settle: int) -> None:
        """Begin a new window after `settle` steps, because the first steps with another lead are not typical of it."""
        self._steps, self._waited = -settle, 0.0

    @property
    def _settled(self) -> bool:
        return self._steps >= 0

    def _step(self, now: float) -> None:
        self._steps += 1
        if self._steps == 0:
            self._from = now
        if self._steps < WINDOW:
            return
        seconds = max(now - self._from, 1e-9)
        pace, waits = WINDOW / seconds, self._waited / seconds
        if self._before is not None and pace < GAIN * self._before:
            self._take(self.lead - 1, f"one more step of lead gave {pace / self._before:.2f} times the pace")
            self._before, self._pause = None, LATER
        elif self._pause > 0 or waits <= BUSY or self.lead >= self.most:
            self._before, self._pause = None, max(0, self._pause - 1)
            self._begin(settle=0)
            self._from = now
        else:
            self._before = pace
            self._take(self.lead + 1, f"the trainer waits for {waits:.0%} of the time")

    def _take(self, lead: int, why: str) -> None:
        self.lead = lead
        self._begin(settle=lead + 1)
        self.choose(
            Lead(lead), f"train.run_ahead = auto: {lead} step{'s' * (lead != 1)} ahead from here on, because {why}"
        )
