"""Bytes of the head: logits are made in tiles (functional/linear_logprobs.py), and the first of them stay.

N positions before scored tokens, D width of the hidden state, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.advise.plan.architecture import Architecture
from posttrain.advise.plan.library import KEPT_LOGIT_BYTES, TILE_COLUMNS, TILE_NUMBERS
from posttrain.advise.plan.records import BYTES, Workload

WIDE = 4


@dataclass(frozen=True, kw_only=True)
class Head:
    """The log-probabilities of one micro-batch."""

    architecture: Architecture
    scored: int
    chunk_tokens: int
    narrow: int
    device: str
    trained: bool

    @staticmethod
    def of(workload: Workload, architecture: Architecture, scored: int, *, trained: bool) -> Head:
        return Head(
            architecture=architecture,
            scored=scored,
            chunk_tokens=workload.logprob_chunk_tokens,
            narrow=BYTES[workload.precision],
            device=workload.device,
            trained=trained,
        )

    @property
    def tile(self) -> int:
        """Logits of the largest tile: a chunk of positions by a part of the vocabulary."""
        rows = max(1, min(self.scored, self.chunk_tokens))
        columns = max(TILE_COLUMNS, TILE_NUMBERS[self.device] // rows)
        return rows * min(columns, self.architecture.vocabulary)

    @property
    def kept(self) -> int:
        """Logits for the backward pass, and the hidden states that they came from."""
        logits = min(self.scored * self.architecture.vocabulary * self.narrow, KEPT_LOGIT_BYTES)
        return logits + self.states

    @property
    def states(self) -> int:
        """Hidden states before scored tokens, with the sums over the vocabulary, targets and places of each."""
        return self.scored * (WIDE * self.architecture.hidden + 4 * WIDE + 3 * 8)

    @property
    def backward_moment(self) -> int:
        """Two tiles, and the gradient of the hidden states; the gradient of the weight stays, see `weight_gradient`."""
        narrow_states = 2 * self.scored * self.architecture.hidden if self.narrow < WIDE else 0
        narrow_tiles = (1 + (self.narrow < WIDE)) * self.narrow * self.tile
        return WIDE * self.tile + narrow_tiles + self.scored * WIDE * self.architecture.hidden + narrow_states

    @property
    def weight_gradient(self) -> int:
        return WIDE * self.architecture.vocabulary * self.architecture.hidden if self.trained else 0

    @property
    def forward_moment(self) -> int:
        """Without gradient: the tile that is made and the one before it, beside the hidden states."""
        return self.states + 2 * WIDE * self.tile
