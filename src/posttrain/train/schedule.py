"""The learning rate of each step. A plan needs it, too, and must not wait for the imports of the optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.config import TrainConfig


def learning_rate_at(step: int, config: TrainConfig, highest: float | None = None) -> float:
    """Learning rate of step `step`, counted from 1; `highest` replaces the peak rate of the config.

    Warm-up of w steps: step / (w + 1) of the full rate. Then, with progress p = (step - w - 1) / (steps - w) in [0, 1):
    constant: 1; linear: 1 - p; cosine: (1 + cos(pi p)) / 2; scaled to end at the ratio r: r + (1 - r) * that.
    The rate 0 before the first step and the final rate after the last are never used: no step is wasted.
    """
    full, warmup = config.learning_rate if highest is None else highest, config.warmup_steps
    if step <= warmup:
        return full * step / (warmup + 1)
    progress = min(1.0, (step - warmup - 1) / max(1, config.steps - warmup))
    share = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": (1.0 + math.cos(math.pi * progress)) / 2,
    }[config.schedule]
    floor = 1.0 if config.schedule == "constant" else config.min_learning_rate_ratio
    return full * (floor + (1.0 - floor) * share)
