"""Where the time of a run goes, and which side waits for the other."""

from __future__ import annotations

import math
from collections.abc import Mapping

from posttrain.report.store import RunRecord, number

PHASES = {"sample": "sampling", "score": "scoring", "train": "training", "publish": "publishing", "check": "checking"}
"""Metric `time/<key>` and what people call it."""


def phase_rows(run: RunRecord) -> list[tuple[float, list[float]]]:
    """(step, seconds of each phase, and the rest of the step last) where timings were recorded."""
    rows = []
    for record in run.metrics:
        whole = number(record.get("time/step"))
        if whole is not None:
            phases = [number(record.get(f"time/{name}"), 0.0) for name in PHASES]
            rows.append((float(record["step"]), [*phases, max(0.0, whole - math.fsum(phases))]))
    return rows


def who_waits(times: Mapping[str, float]) -> tuple[float, float] | None:
    """Shares of a synchronous step in which the trainer waits (for samples and scores) and the sampler waits (for the
    update, and the check after it), from seconds by phase; None without sampling.

    >>> who_waits({"sample": 6.0, "score": 1.0, "train": 2.5, "publish": 0.5})
    (0.7, 0.3)
    """
    total = math.fsum(times.values())
    feeding = times.get("sample", 0.0) + times.get("score", 0.0)
    return (feeding / total, (total - feeding) / total) if feeding > 0 else None


def phase_sums(run: RunRecord) -> dict[str, float]:
    """Seconds of the whole run by phase."""
    rows = phase_rows(run)
    return {name: math.fsum(values[i] for _, values in rows) for i, name in enumerate(PHASES)}
