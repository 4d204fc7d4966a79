"""Measures with one number per run: its cost, its stability, and metrics of your own choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from posttrain.errors import ConfigError
from posttrain.report.store import RunRecord, number, read_rollouts

Take = Literal["mean", "median", "last", "max", "min"]
Better = Literal["higher", "lower", ""]
TAKES: dict[Take, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "median": median,
    "last": lambda values: math.fsum(values[-_tail(values) :]) / _tail(values),
    "max": max,
    "min": min,
}
"""Ways to reduce a run's values to one. `last` is the mean of the last fifth, because a single step says little."""
ROLLOUTS = ("wrong_length", "right_length")
"""Mean tokens of the recorded completions without, and with, the full reward."""
SPIKE = 5.0
"""A gradient norm above this multiple of the run's median is a spike."""
FULL_MARK = 1.0 - 1e-9


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of a run: a metric of its steps, reduced over the steps."""

    metric: str
    take: Take = "mean"
    better: Better = ""
    as_ratio: bool = False
    """Arms are compared by the ratio of the numbers, not by their difference."""

    def record(self) -> dict[str, Any]:
        return {"metric": self.metric, "take": self.take, "better": self.better, "as_ratio": self.as_ratio}

    def of(self, run: RunRecord) -> float | None:
        """Compute the measure of a run. None if the run has no such metric."""
        if self.metric in ROLLOUTS:
            values = lengths(run.folder, run.rollout_steps, right=self.metric == "right_length")
        else:
            values = [value for _, value in run.series(self.metric)]
        return TAKES[self.take](values) if values else None


COST: dict[str, Measure] = {
    "seconds per step": Measure(metric="time/step", take="median", better="lower", as_ratio=True),
    "training seconds per step": Measure(metric="time/train", take="median", better="lower", as_ratio=True),
    "peak memory, GB": Measure(metric="memory/peak_rss_gb", take="max", better="lower", as_ratio=True),
    "peak GPU memory, GB": Measure(metric="memory/peak_cuda_gb", take="max", better="lower", as_ratio=True),
}
STABILITY: dict[str, Measure] = {
    "largest KL within a step": Measure(metric="policy/approx_kl_k3", take="max", better="lower"),
    "largest KL to the reference": Measure(metric="kl", take="max", better="lower"),
    "entropy at the end": Measure(metric="entropy", take="last"),
    "largest gradient": Measure(metric="grad_norm", take="max"),
}

TO_TARGET: dict[str, Measure] = {
    f"{unit} to the target": Measure(
        metric=f"{unit} at its first evaluation", take="last", better="lower", as_ratio=True
    )
    for unit in ("steps", "tokens", "seconds")
}
"""Measures of runs that reach the target. Runs that do not are only counted."""


def measure_of(name: Any, given: Any) -> Measure:
    """Parse `{metric: policy/ratio_std, take: mean, better: lower, as_ratio: false}`, or the metric alone."""
    settings = dict(given) if isinstance(given, Mapping) else {"metric": given}
    allowed = {"take": get_args(Take), "better": get_args(Better), "as_ratio": (True, False)}
    wrong = [key for key in settings if key != "metric" and settings[key] not in allowed.get(key, ())]
    if wrong or not isinstance(settings.get("metric"), str):
        key = wrong[0] if wrong else "metric"
        raise ConfigError(
            given=f"measures.{name}: {key} = {settings.get(key)}",
            allowed=f"metric: a name in metrics.jsonl, {' or '.join(ROLLOUTS)}; take: {', '.join(get_args(Take))}; "
            "better: higher or lower; as_ratio: true or false",
            fix=f"For example, write measures: {{{name}: {{metric: entropy, take: last}}}}.",
        )
    return Measure(**settings)


def lengths(folder: Path, steps: Sequence[int], *, right: bool) -> list[float]:
    """Return, per step, the mean tokens of the completions with the full reward, or of the others."""
    means = []
    for step in steps:
        rows = read_rollouts(folder, step)
        known = [
            (len(row["completion_ids"]), reward) for row in rows if (reward := number(row.get("reward"))) is not None
        ]
        found = [tokens for tokens, reward in known if (reward >= FULL_MARK) == right]
        means += [math.fsum(found) / len(found)] if found else []
    return means


def spikes(run: RunRecord) -> int:
    """Count the steps whose gradient norm is more than SPIKE times the run's median."""
    norms = [value for _, value in run.series("grad_norm")]
    return sum(norm > SPIKE * median(norms) for norm in norms) if norms else 0


def _tail(values: Sequence[float]) -> int:
    return max(1, len(values) // 5)
