"""`train.run_ahead: auto`: how long everything takes in this run, and the least lead that keeps its trainer busy.

A run begins one step ahead. After a few steps what was measured goes into the simulator, which runs the controller
itself with each lead; the least one that is nearly as fast as the largest is taken. Later it is measured again.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from posttrain.controller.messages import (
    Command,
    Deliver,
    Drew,
    Ended,
    Event,
    GiveUp,
    Lead,
    Limits,
    Publish,
    Published,
    Row,
    Score,
    Scored,
    Submit,
    Trained,
)
from posttrain.controller.simulate import least_run_ahead
from posttrain.controller.workload import Workload

FIRST = 1
"""Steps ahead until something was measured."""
MEASURED_AT = (8, 32, 128)
"""Steps since the run began, or went on, after which the lead is chosen. The first ones are not typical."""
MOST = 8
KEPT = 2048
"""Rows that are remembered."""
ROWS, STEPS = 96, 30
"""Of the simulated run: it has to be done before the next steps are."""


@dataclass
class Pace:
    """Told of every event and of what followed; `chosen` is told another lead, and why, in a thread of its own."""

    limits: Limits
    engines: int
    chosen: Callable[[Lead, str], None]
    clock: Callable[[], float] = time.monotonic
    rows: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Tokens and seconds of each row that has ended."""

    def __post_init__(self) -> None:
        self._lead, self._steps = FIRST, 0
        self._begun: dict[Row, float] = {}
        self._drawn: dict[Row, int] = {}
        self._since: dict[str | int, float] = {}
        self._took: dict[str, deque[float]] = {name: deque(maxlen=64) for name in ("train", "publish", "score")}

    def see(self, event: Event, commands: Iterable[Command]) -> None:
        """An event, and what was ordered because of it."""
        now = self.clock()
        match event:
            case Drew(row=row, count=count) if row in self._begun:
                self._drawn[row] += count
            case Ended(row=row) if row in self._begun:
                self.rows.append((self._drawn[row], now - self._begun[row]))
                self._forget(row)
            case Scored(group=group):
                self._end("score", group, now)
            case Published():
                self._end("publish", "publish", now)
            case Trained():
                self._end("train", "train", now)
                self._steps += 1
                if self._steps in MEASURED_AT and self.rows:
                    measured = (self.workload(),)
                    threading.Thread(target=self._choose, args=measured, daemon=True, name="choosing a lead").start()
        for command in commands:
            match command:
                case Submit(row=row, drawn=0) if row.group >= 0:
                    self._begun[row], self._drawn[row] = now, 0
                case Submit(row=row):
                    self._forget(row)  # it goes on elsewhere: how long it took says nothing
                case GiveUp(group=group):
                    for g in range(self.limits.group_size):
                        self._forget(Row(group, g))
                case Score(group=group):
                    self._since[group] = now
                case Deliver():
                    self._since["train"] = now
                case Publish():
                    self._since["publish"] = now

    def workload(self) -> Workload:
        """What was measured, as the simulator takes it: every row draws its tokens at the pace of all."""
        lengths = [max(1, tokens) for tokens, _ in self.rows]
        spread = statistics.pstdev([math.log(length) for length in lengths])
        mean = statistics.mean(lengths)
        return Workload(
            engines=self.engines,
            slots=1 << 20,
            seconds_per_token=sum(seconds for _, seconds in self.rows) / sum(lengths),
            mean_tokens=mean,
            sigma=spread,
            longest=max(lengths) / mean,
            reward_seconds=self._usual("score"),
            train_seconds=self._usual("train"),
            publish_seconds=self._usual("publish"),
        )

    def least(self, workload: Workload) -> int:
        """The least lead that is nearly as fast as the largest that `max_staleness` allows."""
        prompts = min(self.limits.prompts_per_step, max(1, ROWS // self.limits.group_size))
        small = replace(self.limits, prompts_per_step=prompts, last_version=STEPS)
        most = max(FIRST, min(MOST, self.limits.max_staleness))
        return max(FIRST, least_run_ahead(small, workload, most=most))

    def _choose(self, workload: Workload) -> None:
        lead = self.least(workload)
        if lead == self._lead:
            return
        self._lead = lead
        self.chosen(
            Lead(lead),
            f"train.run_ahead = auto: {lead} from here on; answers of {workload.mean_tokens:.0f} tokens take "
            f"{workload.mean_tokens * workload.seconds_per_token:.2g} s and the longest "
            f"{workload.longest * workload.mean_tokens * workload.seconds_per_token:.2g} s, a step trains for "
            f"{workload.train_seconds:.2g} s",
        )

    def _forget(self, row: Row) -> None:
        self._begun.pop(row, None)
        self._drawn.pop(row, None)

    def _end(self, name: str, whom: str | int, now: float) -> None:
        if whom in self._since:
            self._took[name].append(now - self._since.pop(whom))

    def _usual(self, name: str) -> float:
        return statistics.median(self._took[name]) if self._took[name] else 0.0
