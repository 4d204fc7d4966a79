"""The two ways in which an engine comes by the next tokens: drawing them, or being given them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.engines.requests import Row
from posttrain.engines.sampler import SamplingSettings
from posttrain.engines.sampling import UniformStream, choose, token_logprobs, uniforms
from posttrain.models.kernels import Kernels


@dataclass(frozen=True)
class Draw:
    """Samples as the settings say; every row draws from its own random stream (`Request.stream`)."""

    settings: SamplingSettings
    seed: int
    kernels: Kernels | None = None

    def __call__(self, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """See `Choose`."""
        if self.settings.temperature == 0:
            return choose(logits_BV, self.settings, None)
        words = [self._stream(row).word() for row in rows]
        return choose(logits_BV, self.settings, uniforms(words).to(logits_BV.device), self.kernels)

    def _stream(self, row: Row) -> UniformStream:
        if row.uniforms is None:
            row.uniforms = UniformStream(self.seed, *row.request.stream)
        return row.uniforms


@dataclass(frozen=True)
class Score:
    """Takes the tokens of `Request.given_ids`; their log-probabilities are those of the whole distribution."""

    temperature: float

    def __call__(self, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """See `Choose`. A row that has ended repeats its last token."""
        given = [row.request.given_ids[min(len(row.ids), len(row.request.given_ids) - 1)] for row in rows]
        ids_B = torch.tensor(given, device=logits_BV.device)
        return ids_B, token_logprobs(logits_BV, ids_B, temperature=self.temperature)
