"""The time of a run by phase, and which side waits for the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from posttrain.report.store import RunRecord, number

PHASES = {
    "sample": "sampling",
    "wait_for_groups": "waiting for groups",
    "wait_for_rewards": "waiting for rewards",
    "train": "training",
    "publish": "publishing",
    "check": "checking",
}
"""Key of the metric `time/<key>` -> its name for people."""


class Waits(NamedTuple):
    """Waiting times in a synchronous step, as shares of the step."""

    samples: float
    """Share in which the trainer waits for samples."""
    rewards: float
    """Share in which trainer and sampler wait for rewards."""
    update: float
    """Share in which the sampler waits for the update and for the check after it."""

    @property
    def trainer(self) -> float:
        return self.samples + self.rewards


def phase_seconds(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the recorded seconds of each phase of a step.

    Runs of earlier versions scored a step after sampling it; all of `time/score` counts as waiting for rewards.
    """
    found = {name: number(record.get(f"time/{name}")) for name in PHASES}
    if found["wait_for_rewards"] is None:
        found["wait_for_rewards"] = number(record.get("time/score"))
    return {name: value for name, value in found.items() if value is not None}


def phase_rows(run: RunRecord) -> list[tuple[float, list[float]]]:
    """Return (step, [seconds of each phase, rest of the step]) for the steps with recorded timings."""
    rows = []
    for record in run.metrics:
        whole = number(record.get("time/step"))
        if whole is not None:
            known = phase_seconds(record)
            phases = [known.get(name, 0.0) for name in PHASES]
            rows.append((float(record["step"]), [*phases, max(0.0, whole - math.fsum(phases))]))
    return rows


def who_waits(times: Mapping[str, float]) -> Waits | None:
    """Return who waits for whom in a synchronous step, from seconds by phase; None if nothing is sampled.

    >>> who_waits({"sample": 6.0, "wait_for_rewards": 1.0, "train": 2.5, "publish": 0.5})
    Waits(samples=0.6, rewards=0.1, update=0.3)
    """
    total = math.fsum(times.values())
    samples, rewards = times.get("sample", 0.0), times.get("wait_for_rewards", 0.0)
    if samples + rewards <= 0:
        return None
    return Waits(samples / total, rewards / total, (total - samples - rewards) / total)


ENGINES_IDLE = "queue/engines_idle"
"""Metric that only asynchronous runs have, whose engines sample during training."""


def who_waited(record: Mapping[str, Any]) -> str:
    """Return who waited in a step, in a few words; empty if nothing is sampled.

    In a synchronous run, the sampler waits while the trainer works. In an asynchronous run, engines wait only if they
    have nothing to sample: their idle share since the previous step is recorded.

    >>> who_waited({"time/sample": 6.0, "time/train": 4.0})
    'trainer 60%, sampler 40%'
    >>> who_waited({"time/wait_for_groups": 1.0, "time/train": 4.0, "time/step": 5.0, "queue/engines_idle": 0.5})
    'trainer 20%, engines 50%'
    """
    times, idle = phase_seconds(record), number(record.get(ENGINES_IDLE))
    if idle is not None:
        return f"trainer {waited_for_groups(record):.0%}, engines {idle:.0%}"
    waits = who_waits(times)
    return "" if waits is None else f"trainer {waits.trainer:.0%}, sampler {waits.update:.0%}"


def waited_for_groups(record: Mapping[str, Any]) -> float:
    """Return the share of a step in which the trainer waited for groups."""
    waited, whole = number(record.get("time/wait_for_groups"), 0.0), number(record.get("time/step"), 0.0)
    return waited / whole if whole > 0 else 0.0


def phase_sums(run: RunRecord) -> dict[str, float]:
    """Return the seconds of the whole run by phase."""
    rows = phase_rows(run)
    return {name: math.fsum(values[i] for _, values in rows) for i, name in enumerate(PHASES)}
