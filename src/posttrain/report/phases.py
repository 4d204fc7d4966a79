"""Where the time of a run goes, and which side waits for the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from posttrain.report.store import RunRecord, number

PHASES = {
    "sample": "sampling",
    "wait_for_rewards": "waiting for rewards",
    "train": "training",
    "publish": "publishing",
    "check": "checking",
}
"""Metric `time/<key>` and what people call it."""


class Waits(NamedTuple):
    """Shares of a synchronous step."""

    samples: float
    """In which the trainer waits for samples."""
    rewards: float
    """In which trainer and sampler wait for rewards."""
    update: float
    """In which the sampler waits for the update, and the check after it."""

    @property
    def trainer(self) -> float:
        return self.samples + self.rewards


def phase_seconds(record: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the phases that a step has on file.

    Steps of earlier versions were scored after they were sampled, and waited for all of that.
    """
    found = {name: number(record.get(f"time/{name}")) for name in PHASES}
    if found["wait_for_rewards"] is None:
        found["wait_for_rewards"] = number(record.get("time/score"))
    return {name: value for name, value in found.items() if value is not None}


def phase_rows(run: RunRecord) -> list[tuple[float, list[float]]]:
    """(step, seconds of each phase, and the rest of the step last) where timings were recorded."""
    rows = []
    for record in run.metrics:
        whole = number(record.get("time/step"))
        if whole is not None:
            known = phase_seconds(record)
            phases = [known.get(name, 0.0) for name in PHASES]
            rows.append((float(record["step"]), [*phases, max(0.0, whole - math.fsum(phases))]))
    return rows


def who_waits(times: Mapping[str, float]) -> Waits | None:
    """Who waits for whom in a synchronous step, from seconds by phase; None without sampling.

    >>> who_waits({"sample": 6.0, "wait_for_rewards": 1.0, "train": 2.5, "publish": 0.5})
    Waits(samples=0.6, rewards=0.1, update=0.3)
    """
    total = math.fsum(times.values())
    samples, rewards = times.get("sample", 0.0), times.get("wait_for_rewards", 0.0)
    if samples + rewards <= 0:
        return None
    return Waits(samples / total, rewards / total, (total - samples - rewards) / total)


def phase_sums(run: RunRecord) -> dict[str, float]:
    """Seconds of the whole run by phase."""
    rows = phase_rows(run)
    return {name: math.fsum(values[i] for _, values in rows) for i, name in enumerate(PHASES)}
