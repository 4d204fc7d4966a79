"""What rounding explains of a difference between an engine's log-probabilities and the trainer's, by precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Level:
    """In nats."""

    p99: float
    """Of a token: 99 of 100 tokens of a step are closer."""
    mean: float
    """Of a step, and of a row: smaller means are never a drift."""


LEVELS: Mapping[torch.dtype, Level] = {
    torch.float64: Level(p99=1e-3, mean=1e-4),
    torch.float32: Level(p99=1e-3, mean=1e-4),
    torch.float16: Level(p99=0.05, mean=0.01),
    torch.bfloat16: Level(p99=0.3, mean=0.05),
}
