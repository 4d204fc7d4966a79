"""Bytes of the head: logits are made in tiles (functional/linear_logprobs.py), and the first of them stay.

N positions before scored tokens, D width of the hidden state, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.functional.linear_logprobs import KEPT_BYTES, TILE_COLUMNS, TILE_NUMBERS, TILE_NUMBERS_ELSEWHERE
from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.records import BYTES, Workload

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
        return self._tile_rows * min(self._tile_columns, self.architecture.vocabulary)

    @property
    def tiles_at_once(self) -> int:
        """While a tile is made the one before it, where there is one, is still there."""
        is_one = self.scored <= self.chunk_tokens and self.architecture.vocabulary <= self._tile_columns
        return 1 if is_one else 2

    @property
    def _tile_rows(self) -> int:
        return max(1, min(self.scored, self.chunk_tokens))

    @property
    def _tile_columns(self) -> int:
        numbers = TILE_NUMBERS if self.device == "cpu" else TILE_NUMBERS_ELSEWHERE
        return max(TILE_COLUMNS, numbers // self._tile_rows)

    @property
    def kept(self) -> int:
        """Logits for the backward pass, and the hidden states that they came from."""
        logits = min(self.scored * self.architecture.vocabulary * self.narrow, KEPT_BYTES)
        return logits + self.states

    @property
    def states(self) -> int:
        """Hidden states before scored tokens, with the sums over the vocabulary, targets and places of each."""
        return self.scored * (WIDE * self.architecture.hidden + 4 * WIDE + 3 * 8)

    @property
    def backward_moment(self) -> int:
        """Tiles, and the gradient of the hidden states; the gradient of the weight stays, see `weight_gradient`.

        In half precision a tile is there once in float32 and twice cast: the one before it, and its own.
        """
        half = self.narrow < WIDE
        states = self.scored * self.architecture.hidden * (WIDE + (self.narrow if half else 0))
        tiles = WIDE * self.tile + 2 * self.narrow * self.tile if half else self.tiles_at_once * WIDE * self.tile
        return tiles + states

    @property
    def weight_gradient(self) -> int:
        return WIDE * self.architecture.vocabulary * self.architecture.hidden if self.trained else 0

    @property
    def forward_moment(self) -> int:
        """Without gradient: tiles beside the hidden states."""
        return self.states + self.tiles

    @property
    def tiles(self) -> int:
        """In a forward pass: the one that is made and the one before it."""
        return self.tiles_at_once * WIDE * self.tile
