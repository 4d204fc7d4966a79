"""How long everything takes in a simulated run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from posttrain.controller.messages import Limits, WaitKind


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Engines, rewards and a trainer, in seconds."""

    engines: int = 1
    slots: int = 64
    """Rows that an engine decodes at once; the others wait in it, in the order of their submission."""
    seconds_per_token: float = 0.001
    seconds_per_token_and_row: float = 0.0
    """While n rows are decoded, a token of each takes seconds_per_token + n * seconds_per_token_and_row."""
    mean_tokens: float = 1000.0
    """Lengths are log-normal, with this mean before they are cut."""
    sigma: float = 1.0
    longest: float = 6.0
    """Nothing is longer than so many times the mean."""
    turns: int = 1
    """In which a row is drawn, where the limits say that rows have several."""
    act_seconds: float = 0.1
    """Mean time that an environment takes between two turns; it is distributed exponentially."""
    act_fails: float = 0.0
    """Share of its answers in place of which the row begins anew."""
    act_hangs: float = 0.0
    """Share of its answers that never come."""
    reward_seconds: float = 0.0
    train_seconds: float = 1.0
    publish_seconds: float = 0.02
    load_seconds: float = 0.0
    """An engine stops so long to take new weights and to compute its keys and values anew."""
    sleep_seconds: float = 0.0
    """An engine takes so long to give its memory back, where it shares that of the trainer's device."""
    join_seconds: float = 0.0
    evaluate_every: int = 0
    """After so many versions, 0 included, the trainer waits for the answers of an evaluation; 0: never."""
    evaluated: int = 0
    """Groups of an evaluation."""
    lead_changes: float = 0.0
    """Share of steps after which the lead is another one."""
    voided: float = 0.0
    """Share of groups that are replaced, as there is nothing to learn from them."""
    report_seconds: float | None = None
    """An engine tells its tokens so often. None: when a row ends and before weights are loaded."""
    deadlines: Mapping[WaitKind, float] = field(default_factory=dict)
    """By kind of wait; a kind that is not named is waited for for ever."""

    def group(self, limits: Limits, seed: int, number: int) -> tuple[list[int], bool]:
        """Lengths of a group's rows, and whether it trains: a function of the seed and the number alone."""
        rng = Random(seed * 1_000_003 + number)
        mean = math.log(self.mean_tokens) - self.sigma**2 / 2
        most = self.longest * self.mean_tokens
        drawn = [math.exp(rng.gauss(mean, self.sigma)) for _ in range(limits.group_size)]
        return [max(1, round(min(most, length))) for length in drawn], rng.random() >= self.voided
