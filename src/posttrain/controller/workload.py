"""The durations of everything in a simulated run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from posttrain.controller.messages import Limits, WaitKind


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Durations of engines, rewards and the trainer, in seconds, and the lengths of rows."""

    engines: int = 1
    slots: int = 64
    """Number of rows that an engine decodes at the same time. Other rows wait in the order of their submission."""
    seconds_per_token: float = 0.001
    seconds_per_token_and_row: float = 0.0
    """With n rows in the engine, one token of each takes seconds_per_token + n * seconds_per_token_and_row."""
    mean_tokens: float = 1000.0
    """Mean length of a row. Lengths are log-normal; the mean is before they are cut."""
    sigma: float = 1.0
    longest: float = 6.0
    """Rows are cut at this multiple of the mean."""
    turns: int = 1
    """Number of turns of a row, if the limits say that rows have several."""
    act_seconds: float = 0.1
    """Mean time of an environment between two turns, with an exponential distribution."""
    act_fails: float = 0.0
    """Share of environment answers that are replaced by a failure, after which the row starts over."""
    act_hangs: float = 0.0
    """Share of environment answers that never come."""
    reward_seconds: float = 0.0
    train_seconds: float = 1.0
    publish_seconds: float = 0.02
    load_seconds: float = 0.0
    """Time for which an engine stops to load new weights and to recompute its keys and values."""
    sleep_seconds: float = 0.0
    """Time that an engine takes to free its memory, if it shares the trainer's device."""
    join_seconds: float = 0.0
    evaluate_every: int = 0
    """The trainer waits for an evaluation after every multiple of this version, including version 0; 0: never."""
    evaluated: int = 0
    """Number of groups in an evaluation."""
    lead_changes: float = 0.0
    """Share of steps after which `run_ahead` changes."""
    voided: float = 0.0
    """Share of groups that are replaced because there is nothing to learn from them."""
    report_seconds: float | None = None
    """Interval in which an engine reports tokens. None: only when a row ends and before weights are loaded."""
    deadlines: Mapping[WaitKind, float] = field(default_factory=dict)
    """Deadlines by kind of wait. A kind that is missing has no deadline."""

    def group(self, limits: Limits, seed: int, number: int) -> tuple[list[int], bool]:
        """Lengths of a group's rows, and whether the group trains. Both depend only on the seed and the number."""
        rng = Random(seed * 1_000_003 + number)
        mean = math.log(self.mean_tokens) - self.sigma**2 / 2
        most = self.longest * self.mean_tokens
        drawn = [math.exp(rng.gauss(mean, self.sigma)) for _ in range(limits.group_size)]
        return [max(1, round(min(most, length))) for length in drawn], rng.random() >= self.voided
