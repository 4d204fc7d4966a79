"""How compiled kernels want their arguments laid out: families of segments, places of rows, weights in panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

PANEL = 64
"""Outputs of a linear layer whose weights are stored together."""
CHUNK_ROWS = 8
"""Rows of one prompt that are computed together: its keys and values are read once for all of them."""


@dataclass(frozen=True)
class Families:
    """Segments of packed rows. Those of a family see a prefix of its first one before their own tokens."""

    segments: Tensor
    """`[segments, 3]` start, length and length of the prefix; the first of a family has none."""
    starts: Tensor
    """`[families + 1]`: where families begin in `segments`."""

    @property
    def number(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def tokens(self) -> int:
        """Of all segments, each of them once."""
        return int(self.segments[:, 1].sum())


@dataclass(frozen=True)
class RowPlaces:
    """Where each of n rows is, for as long as the same rows are in flight."""

    prompts_n: Tensor
    """The slot of the prompt that a row began with."""
    lengths_n: Tensor
    """Tokens of that prompt."""
    order_n: Tensor
    """The rows, those of a prompt beside each other."""
    chunks: Tensor
    """`[number + 1]`: where in `order_n` chunks begin, of rows of one prompt."""

    @staticmethod
    def of(prompt_n: Sequence[int], lengths: Sequence[int]) -> RowPlaces:
        """`lengths`: of every prompt."""
        prompts, lengths_P = np.array(prompt_n, dtype=np.int64), np.array(lengths, dtype=np.int64)
        order = np.argsort(prompts, kind="stable")
        first = np.flatnonzero(np.diff(prompts[order], prepend=-1))
        ends = np.append(first[1:], len(order))
        chunks = [place for a, b in zip(first, ends, strict=True) for place in range(a, b, CHUNK_ROWS)]
        arrays = (prompts, lengths_P[prompts], order, np.array([*chunks, len(order)]))
        return RowPlaces(*map(torch.from_numpy, arrays))


def in_panels(weight_MK: Tensor) -> Tensor:
    """A copy of a weight as `Kernels.linear` reads it, flat: transposed, `PANEL` outputs after the other.

    In bfloat16 two neighbouring inputs stay together.
    """
    if weight_MK.dtype == torch.bfloat16:
        pairs_MK = weight_MK.clone() if weight_MK.storage_offset() % 2 else weight_MK
        return in_panels(pairs_MK.contiguous().view(torch.int32)).view(torch.bfloat16)
    whole = len(weight_MK) // PANEL * PANEL
    panels, rest = weight_MK[:whole].unflatten(0, (-1, PANEL)), weight_MK[whole:]
    return torch.cat([panels.transpose(1, 2).flatten(), rest.T.flatten()])
