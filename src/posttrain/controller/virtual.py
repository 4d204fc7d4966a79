"""An engine in virtual time. It decodes its rows in parallel, all at the same speed."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posttrain.controller.messages import (
    Drew,
    Ended,
    Event,
    Interrupt,
    Joined,
    Load,
    Loaded,
    Lost,
    Paused,
    Returned,
    Row,
    Sleep,
    Slept,
    Submit,
)

if TYPE_CHECKING:
    from posttrain.controller.world import World

ALMOST = 1e-6
"""Fraction of a token by which rounding may make a finished token look unfinished."""


@dataclass
class Decoding:
    """A row that the engine holds."""

    row: Row
    attempt: int
    left: int
    """Number of tokens from here to the end of the row, or of its turn."""
    begun: float = 0.0
    """The engine's `work` when the row began: tokens drawn per row since the engine was started."""
    told: int = 0
    gone: bool = False


class VirtualEngine:
    """An engine process that can be restarted. A restart loses pending messages, except those about rows."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world, self.workload = name, world, world.workload
        self.process = 0
        self.busy = 0.0
        self.next_start_fails = False
        self.next_load: str = ""
        """The fault of the next load: "fails", "hangs", "lies" or "slow"."""
        self.next_sleep: str = ""
        """The fault of the next sleep: "fails" or "hangs"."""
        self.stop()

    # --- start and stop ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the process."""
        self.process += 1
        self.alive = self.joined = self.hung = False
        self.version: int | None = None
        self.loading: int | None = None
        self.label = 0
        """Added to each version that the engine reports."""
        self.lied = False
        self.slowness = 1.0
        self.active: list[Decoding] = []
        self.queue: deque[Decoding] = deque()
        self.ends: list[tuple[float, int, Decoding]] = []
        self.work, self.at, self.speed, self.change = 0.0, self.world.now, 0.0, 0

    def start(self) -> None:
        self.stop()
        self.alive = True
        if self.next_start_fails:
            self.next_start_fails, self.hung = False, True
            self.world.struck("never joins", self.name)
        else:
            self.later(self.workload.join_seconds, self.join)

    def join(self) -> None:
        self.joined = True
        self.say(Joined(self.name))
        if self.workload.report_seconds is not None:
            self.later(self.workload.report_seconds, self._report)

    def _report(self) -> None:
        assert self.workload.report_seconds is not None
        self.tell_tokens()
        self.later(self.workload.report_seconds, self._report)

    def hang(self) -> None:
        self.advance()
        self.hung = True
        self.plan()

    def slow_down(self, factor: float) -> None:
        self.advance()
        self.slowness = factor
        self.plan()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after some time, if this process still exists then and does not hang."""
        process = self.process

        def act() -> None:
            if self.process == process and not self.hung:
                action()

        self.world.after(seconds, act)

    def say(self, event: Event) -> None:
        """Send a message to the controller. Messages about rows arrive even if the process has died since."""
        if isinstance(event, Joined | Loaded | Slept | Lost):
            self.later(0.0, lambda: self.world.tell(event))
        else:
            self.world.after(0.0, lambda: self.world.tell(event))

    # --- commands ----------------------------------------------------------------------------------------------------

    def submit(self, command: Submit) -> None:
        left = self.world.turn_ends(command.row, command.drawn) - command.drawn
        if self.alive:
            self.queue.append(Decoding(command.row, command.attempt, max(1, left)))
            self.plan()

    def interrupt(self, command: Interrupt) -> None:
        if self.alive and not self.hung:
            self.give_back(command.row)

    def give_back(self, row: Row) -> None:
        decoding = self.drop(row)
        if decoding is not None:
            self.tell(decoding)
            self.say(Returned(self.name, row, decoding.attempt))

    def drop(self, row: Row) -> Decoding | None:
        """Drop a row and return it; None if the engine does not hold it."""
        self.advance()
        found = next((decoding for decoding in self.held() if decoding.row == row), None)
        if found is not None:
            found.gone = True
            self.active = [decoding for decoding in self.active if decoding is not found]
            self.queue = deque(decoding for decoding in self.queue if decoding is not found)
            self.plan()
        return found

    def held(self) -> list[Decoding]:
        return [*self.active, *self.queue]

    def load(self, command: Load) -> None:
        if not self.alive or self.hung:
            return
        self.tell_tokens()
        self.loading = command.version
        self.plan()
        wrong, self.next_load = self.next_load, ""
        if wrong:
            self.world.struck(f"load {wrong}", ("load", self.name) if wrong == "slow" else self.name)
        if wrong == "hangs":
            self.hang()
        elif wrong == "fails":
            self.later(self.workload.load_seconds, lambda: self.say(Lost(self.name, "failed to load its weights")))
        else:
            seconds = self.workload.load_seconds
            if wrong == "slow":
                seconds += self.world.rng.uniform(0.2, 1.2) * self.workload.deadlines["load"]
            self.later(seconds, lambda: self._loaded(command.version, 1 if wrong == "lies" else 0))

    def sleep(self, command: Sleep) -> None:
        if not self.alive or self.hung:
            return
        self.version = None
        wrong, self.next_sleep = self.next_sleep, ""
        if wrong:
            self.world.struck(f"sleep {wrong}", self.name)
        if wrong == "hangs":
            self.hang()
        elif wrong == "fails":
            self.later(self.workload.sleep_seconds, lambda: self.say(Lost(self.name, "keeps the memory")))
        else:
            self.later(self.workload.sleep_seconds, lambda: self.say(Slept(self.name)))

    def _loaded(self, version: int, lie: int) -> None:
        self.version, self.loading = version, None
        self.world.settle(("load", self.name))
        self.say(Loaded(self.name, version + lie))
        self.advance()
        self.plan()

    # --- decoding ----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Count the tokens drawn since the last call."""
        elapsed = self.world.now - self.at
        if self.speed:
            self.work += elapsed * self.speed
            self.busy += elapsed
        self.at = self.world.now

    def plan(self) -> None:
        """Start waiting rows, and schedule the moment when the next row ends."""
        self.advance()
        can = self.alive and not self.hung and self.loading is None and self.version is not None
        while can and self.queue and len(self.active) < self.workload.slots:
            decoding = self.queue.popleft()
            decoding.begun = self.work
            self.active.append(decoding)
            self.change += 1
            heapq.heappush(self.ends, (self.work + decoding.left, self.change, decoding))
        rows = len(self.active)
        pace = self.workload.seconds_per_token + rows * self.workload.seconds_per_token_and_row
        self.speed = 1.0 / (pace * self.slowness) if can and rows else 0.0
        while self.ends and self.ends[0][2].gone:
            heapq.heappop(self.ends)
        self.change += 1
        if self.speed:
            change = self.change
            until = max(0.0, self.ends[0][0] - self.work) / self.speed
            self.later(until, lambda: self._tick() if change == self.change else None)

    def _tick(self) -> None:
        """End the rows that are finished now."""
        self.advance()
        while self.ends and (self.ends[0][2].gone or self.ends[0][0] <= self.work + ALMOST):
            decoding = heapq.heappop(self.ends)[2]
            if not decoding.gone:
                decoding.gone = True
                self.tell(decoding, decoding.left)
                over = Paused if self.world.limits.turns else Ended
                self.say(over(self.name, decoding.row, decoding.attempt))
        self.active = [decoding for decoding in self.active if not decoding.gone]
        self.plan()

    def tell_tokens(self) -> None:
        self.advance()
        for decoding in self.active:
            self.tell(decoding)

    def tell(self, decoding: Decoding, drawn: int | None = None) -> None:
        """Report the tokens of a row that were not reported yet."""
        if drawn is None:
            drawn = 0 if decoding in self.queue else min(decoding.left - 1, int(self.work - decoding.begun + ALMOST))
        if drawn > decoding.told and self.version is not None:
            if self.label and not self.lied:
                self.lied = True
                self.world.struck("version ahead" if self.label > 0 else "version behind", self.name)
            said = Drew(self.name, decoding.row, decoding.attempt, self.version + self.label, drawn - decoding.told)
            decoding.told = drawn
            self.say(said)
