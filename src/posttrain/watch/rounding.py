"""The differences between engine and trainer log-probabilities that rounding explains, by precision.

Measured at temperature 1 between an engine that holds bfloat16 and a trainer under autocast, over tokens that the model
drew: mean 0.021, p99 0.126, largest 0.27 (stories260K, 2048 tokens); 0.018, 0.109, 0.15 (stories15M, 1024 tokens). In
float32 the largest difference was 2e-5 between two ways of decoding, and 1.2e-4 to a vLLM server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Level:
    """Differences that rounding explains, in nats, at temperature 1."""

    p99: float
    """Bound on single tokens: 99 of 100 tokens of a step differ by less."""
    mean: float
    """Bound on the mean of a step or row. A smaller mean is never a drift."""

    def at(self, temperature: float) -> Level:
        """The level at a temperature. The temperature divides the logits, and so their rounding errors.

        Above 1 the level does not shrink, like the tolerance of `DeliveryProof`.

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
