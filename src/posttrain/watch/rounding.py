"""The difference between an engine's log-probabilities and the trainer's that rounding explains, by precision.

Measured at temperature 1 between an engine that holds bfloat16 and a trainer under autocast, over tokens that the model
drew: mean 0.021, p99 0.126, largest 0.27 (stories260K, 2048 tokens); 0.018, 0.109, 0.15 (stories15M, 1024 tokens). In
float32 the largest difference was 2e-5 between two ways of decoding, and 5e-5 to a vLLM server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Level:
    """In nats, at temperature 1."""

    p99: float
    """Of a token: 99 of 100 tokens of a step are closer."""
    mean: float
    """Of a step, and of a row: smaller means are never a drift."""

    def at(self, temperature: float) -> Level:
        """Logits are divided by a temperature, and their rounding with them. Above 1 it is not taken for smaller, as
        the tolerance of `DeliveryProof` is not.

        >>> Level(p99=0.3, mean=0.06).at(0.5)
        Level(p99=0.6, mean=0.12)
        """
        scale = min(temperature or 1.0, 1.0)
        return Level(p99=self.p99 / scale, mean=self.mean / scale)


LEVELS: Mapping[torch.dtype, Level] = {
    torch.float64: Level(p99=1e-3, mean=1e-4),
    torch.float32: Level(p99=1e-3, mean=1e-4),
    torch.float16: Level(p99=0.05, mean=0.01),
    torch.bfloat16: Level(p99=0.3, mean=0.05),
}
