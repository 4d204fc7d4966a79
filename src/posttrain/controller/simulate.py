"""Asynchronous runs in virtual time: the real controller, with engines, rewards and a trainer that only take time.

simulate(limits, Workload(engines=2, slots=64, sigma=1.0), seed=0).steps_per_hour
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from posttrain.controller.controller import Controller
from posttrain.controller.faults import Faults, strike
from posttrain.controller.invariants import Broken
from posttrain.controller.messages import Command, Event, Limits, Stop
from posttrain.controller.workload import Workload
from posttrain.controller.world import Step, World


@dataclass
class Simulated:
    """The result of a simulated run."""

    seconds: float
    stop: Stop | None
    """The command that ended the run; None if it did not end."""
    steps: list[Step]
    drawn: list[int]
    """Lengths in tokens of all rows that were begun, trained or not. A row that was given up counts in full length."""
    trainer_idle: float
    """Share of the time in which the trainer neither trained nor published."""
    engines_idle: float
    """Share of the engines' time in which they decoded nothing."""
    counts: dict[str, int]
    """The controller's counters."""
    faults: dict[str, int]
    """Number of faults of each kind."""
    answered: dict[str, int]
    """Number of faults of each kind that were noticed or passed. The run ended before the others had an effect."""
    broken: list[Broken]
    history: list[tuple[float, Event, list[Command]]]

    @property
    def steps_per_hour(self) -> float:
        return 3600 * len(self.steps) / self.seconds if self.seconds else 0.0

    @cached_property
    def lags(self) -> Counter[int]:
        """Number of trained tokens by age."""
        lags: Counter[int] = Counter()
        for step in self.steps:
            lags.update(step.lags)
        return lags

    @property
    def mean_lag(self) -> float:
        return sum(lag * tokens for lag, tokens in self.lags.items()) / max(1, self.lags.total())

    @property
    def largest_lag(self) -> int:
        return max(self.lags, default=0)

    def lag_quantile(self, share: float) -> int:
        """The age that this share of the trained tokens does not exceed."""
        below = 0
        for lag, tokens in sorted(self.lags.items()):
            below += tokens
            if below >= share * self.lags.total():
                return lag
        return 0

    @property
    def masked(self) -> float:
        """Share of the tokens of trained groups that were too old to enter a loss."""
        masked = sum(step.masked for step in self.steps)
        return masked / max(1, masked + self.lags.total())

    def share_of_longest(self, part: float = 0.1) -> tuple[float, float]:
        """Share of the drawn tokens, and of the trained tokens, that belong to the longest tenth of completions."""
        least = sorted(self.drawn)[int(len(self.drawn) * (1 - part))] if self.drawn else 0
        rows = [row for step in self.steps for row in step.rows]
        drawn = sum(length for length in self.drawn if length >= least) / max(1, sum(self.drawn))
        trained = sum(tokens for length, tokens in rows if length >= least) / max(1, sum(tokens for _, tokens in rows))
        return drawn, trained


def simulate(
    limits: Limits,
    workload: Workload,
    *,
    seed: int = 0,
    faults: Faults | None = None,
    controller: type[Controller] = Controller,
    watched: bool = False,
    history: bool = False,
) -> Simulated:
    """Simulate a run from its first version to its end. The same arguments give the same record.

    `watched`: check the invariants (`broken`). `history`: keep all events and commands, with their times.
    """
    world = World(limits, workload, seed, controller, watched=watched, history=history)
    if faults is not None:
        strike(world, faults)
    world.run()
    seconds = max(world.now, 1e-9)
    return Simulated(
        seconds=world.now,
        stop=world.stop,
        steps=world.steps[: world.version],
        drawn=list(world.drawn.values()),
        trainer_idle=1 - world.trainer_busy / seconds,
        engines_idle=1 - world.engines_busy / (seconds * workload.engines),
        counts=dict(world.controller.counts),
        faults=dict(world.faults),
        answered=dict(world.answered),
        broken=world.observer.broken if world.observer else [],
        history=world.history or [],
    )
