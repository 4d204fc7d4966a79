"""Attention of the new tokens of rows that share prompts, in one of two ways that compute the same.

    ByProducts    batched matrix products of PyTorch, on any device (group_attention.py)
    ByKernel      one call of a compiled kernel for each layer, on a CPU (kernels.py)

Both are made anew when other rows are in flight or other columns are in use. n rows, m with those that fill up, C
columns of prompts and rows together; H, K, D as in group_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from posttrain.cpu.group_attention import Groups, Heads, Stored, attend_rows
from posttrain.cpu.group_cache import Place, SlotBlocks
from posttrain.cpu.kernels import LANES, Kernels
from posttrain.cpu.layouts import RowPlaces


class RowAttention(Protocol):
    """Rows in flight, and where they and their prompts are stored."""

    needs_causal_mask: bool
    """Whether a mask has to say that a row sees its prompt and itself and nothing else."""

    def __call__(self, layer: int, qkv_mND: Tensor, ages_m: Tensor, place: Place, mask_m1C: Tensor | None) -> Tensor:
        """`[m, H D]`: the new tokens of the rows are stored, and attend to what their rows hold.

        `qkv_mND` are rotated queries, rotated keys and values; `ages_m` the tokens that a row has stored behind its
        prompt, and `place` the same as a place; the mask is added to scores.
        """
        ...


class ByProducts:
    """Implements `RowAttention`."""

    needs_causal_mask = True

    def __init__(
        self,
        prompts: SlotBlocks,
        rows: SlotBlocks,
        heads: Heads,
        *,
        prompt_n: Sequence[int],
        num_prompts: int,
        num_filled: int,
        device: torch.device,
    ) -> None:
        self._prompts, self._rows, self._heads = prompts, rows, heads
        self._num_rows = len(prompt_n)
        self._groups = Groups.of(prompt_n, num_prompts, heads, device, num_filled=num_filled)
        self._stored: dict[int, tuple[Stored, Stored]] = {}

    def __call__(self, layer: int, qkv_mND: Tensor, ages_m: Tensor, place: Place, mask_m1C: Tensor | None) -> Tensor:
        """See `RowAttention`."""
        assert mask_m1C is not None, "products see every column"
        self._rows.write_token(layer, place, *key_value(qkv_mND[: self._num_rows], self._heads))
        if layer not in self._stored:
            prompts = self._prompts.stored(layer, self._groups.num_prompts)
            self._stored[layer] = prompts, self._rows.stored(layer, len(qkv_mND))
        return attend_rows(qkv_mND, self._groups, *self._stored[layer], mask_m1C, self._heads)


class ByKernel:
    """Implements `RowAttention`. Rows that fill up get zeros."""

    needs_causal_mask = False

    def __init__(
        self,
        kernels: Kernels,
        prompts: SlotBlocks,
        rows: SlotBlocks,
        heads: Heads,
        *,
        prompt_n: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """`lengths`: of every prompt."""
        self._kernels, self._prompts, self._rows, self._heads = kernels, prompts, rows, heads
        self._num_rows = len(prompt_n)
        self._places = RowPlaces.of(prompt_n, lengths)

    @staticmethod
    def knows(heads: Heads) -> bool:
        """Whether the kernel can compute with heads of this width."""
        return heads.width % (2 * LANES) == 0

    def __call__(self, layer: int, qkv_mND: Tensor, ages_m: Tensor, place: Place, mask_m1C: Tensor | None) -> Tensor:
        """See `RowAttention`."""
        qkv_nND = qkv_mND[: self._num_rows]
        key_nKD, _ = key_value(qkv_nND, self._heads)
        output_nA = self._kernels.attend_rows(
            qkv_nND,
            self._places,
            ages_m,
            self._prompts.blocks(layer, key_nKD),
            self._rows.blocks(layer, key_nKD),
            self._heads.scaling,
            None if mask_m1C is None else mask_m1C[:, 0],
            self._prompts.num_columns,
        )
        filled = len(qkv_mND) - self._num_rows
        return torch.cat([output_nA, output_nA.new_zeros(filled, output_nA.shape[1])]) if filled else output_nA


def key_value(qkv_nND: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """`[n, K, D]` each."""
    _, key_nKD, value_nKD = qkv_nND.split([heads.query, heads.key, heads.key], dim=1)
    return key_nKD, value_nKD
