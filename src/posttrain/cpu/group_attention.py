"""Attention of rows that share prompts: the prompt of a group is read once for all of its rows.

A grid places the queries of the rows of one prompt next to each other. Their products with the prompt's keys and values
are then one matrix product for each prompt and head. The products with a row's own keys and values are one for each row
and head. Both kinds of scores go through one softmax:

    weights = softmax([ scaling q K_prompt + mask | scaling q K_row + mask ])
    output = weights_prompt V_prompt + weights_row V_row

n rows, P prompts, g places in a group (the largest group), H query heads, K key-value heads, H = K G, N = H + 2 K, D
width of a head, C_p and C_s columns of prompts and of rows.

Keys and values are stored once for each prompt. A row stores only the tokens after its prompt.

    prompts     [P, K, D, C_p] keys, [P, K, C_p, D] values      a slot for each prompt that a row began with
    rows        [S, K, D, C_s] keys, [S, K, C_s, D] values      a slot for each row, column = tokens after the prompt

Columns are contiguous in memory for keys. The product of one query with many keys then reads memory in order, which
takes less than half the time for bfloat16 on a CPU.

P prompts, S rows, K key-value heads, D width of a head, C columns.

Two classes compute the attention of the new tokens of rows, with the same result:

    ByProducts    batched matrix products of PyTorch, on any device
    ByKernel      one call of a compiled kernel for each layer, on a CPU (kernels.py)

Both are rebuilt when the rows in flight or the columns in use change. n rows, m rows including the padding rows, C
columns of prompts and rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.cpu.kernel_formulas import RowPlaces
from posttrain.cpu.kernels import LANES, Kernels
from posttrain.models.footprint import GROUP_COLUMNS, SLOT_GROWTH

Place = tuple[Tensor, Tensor] | tuple[slice, int]
"""Slots and columns, `[n]` each; or a range of the first slots and one column that all of them write, which takes half
the time."""


class SlotBlocks:
    """The keys and values of every layer, with one slot for each prompt or row. Slots in use come first."""

    def __init__(self, num_layers: int) -> None:
        self.num_columns = 0
        """C, the number of columns in use."""
        self.capacity = 0
        self.num_slots = 0
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    def would_change(self, num_slots: int, num_columns: int) -> bool:
        """Whether `use` with these numbers makes earlier results of `stored` invalid. Drop them before it does: memory
        that they share is freed only then."""
        return num_slots > self.num_slots or _in_blocks(num_columns) != self.num_columns

    def use(self, num_slots: int, num_columns: int, *, num_held: int) -> bool:
        """Provide `num_slots` slots and at least `num_columns` columns. Slots from `num_held` on hold nothing.

        Returns True if earlier results of `stored` are no longer valid. New memory has no spare slots, because late in
        a batch few rows are left.
        """
        changed = self.would_change(num_slots, num_columns)
        num_columns = _in_blocks(num_columns)
        if num_slots > self.num_slots or num_columns > self.capacity:
            if num_columns > self.capacity:
                self.capacity = max(num_columns, int(self.capacity * SLOT_GROWTH))
            held = slice(0, min(num_held, self.num_slots)), slice(0, self.num_columns)
            self.num_slots = num_slots
            for number, blocks in enumerate(self._layers):
                if blocks is not None:
                    keys_SKDC, values_SKCD = blocks
                    self._layers[number] = self._grown(keys_SKDC, 3, *held), self._grown(values_SKCD, 2, *held)
        self.num_columns = num_columns
        return changed

    def write_prompt(self, layer: int, slot: int, key_TKD: Tensor, value_TKD: Tensor) -> None:
        """Write the first T columns of one slot."""
        keys_SKDC, values_SKCD = self.blocks(layer, key_TKD)
        keys_SKDC[slot, :, :, : len(key_TKD)] = key_TKD.permute(1, 2, 0)
        values_SKCD[slot, :, : len(key_TKD)] = value_TKD.transpose(0, 1)

    def write_token(self, layer: int, place: Place, key_nKD: Tensor, value_nKD: Tensor) -> None:
        """Write one column of each of the given slots."""
        keys_SKDC, values_SKCD = self.blocks(layer, key_nKD)
        slots, columns = place
        keys_SKDC[slots, :, :, columns] = key_nKD.to(keys_SKDC.dtype)
        values_SKCD[slots, :, columns] = value_nKD.to(values_SKCD.dtype)

    def stored(self, layer: int, num_used: int) -> tuple[Tensor, Tensor]:
        """Keys `[S K, D, C]` and values `[S K, C, D]` of the slots in use, without a copy."""
        blocks = self._layers[layer]
        assert blocks is not None, "a layer must be written before it is read"
        keys_SKDC, values_SKCD = blocks
        keys_sKDC = keys_SKDC[:num_used, :, :, : self.num_columns]
        return keys_sKDC.flatten(0, 1), values_SKCD[:num_used, :, : self.num_columns].flatten(0, 1)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of one slot to another, in all layers."""
        for keys_SKDC, values_SKCD in filter(None, self._layers):
            keys_SKDC[target, :, :, :length] = keys_SKDC[source, :, :, :length]
            values_SKCD[target, :, :length] = values_SKCD[source, :, :length]

    def close_ranks(self, kept: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy slot `kept[i]` to slot i. No slot that is still to be moved is overwritten (`engine.py`)."""
        for place, slot in enumerate(kept):
            if place != slot and lengths[slot]:
                self.copy(slot, place, lengths[slot])

    def blocks(self, layer: int, like_nKD: Tensor) -> tuple[Tensor, Tensor]:
        """All slots of a layer with all allocated columns, including those that are not in use.

        They are made in the precision of attention, and filled with zeros: masked columns have weight 0, and 0 times
        uninitialised memory may be NaN.
        """
        blocks = self._layers[layer]
        if blocks is None:
            _, heads, width = like_nKD.shape
            keys_SKDC = like_nKD.new_zeros(self.num_slots, heads, width, self.capacity)
            values_SKCD = like_nKD.new_zeros(self.num_slots, heads, self.capacity, width)
            blocks = self._layers[layer] = keys_SKDC, values_SKCD
        return blocks

    def _grown(self, block: Tensor, axis: int, slots: slice, columns: slice) -> Tensor:
        shape = [self.num_slots, *block.shape[1:]]
        shape[axis] = self.capacity
        grown = block.new_zeros(shape)
        held = (slots, slice(None), *([slice(None)] * (axis - 2)), columns)
        grown[held] = block[held]
        return grown


def _in_blocks(num_columns: int) -> int:
    return -(-num_columns // GROUP_COLUMNS) * GROUP_COLUMNS


Stored = tuple[Tensor, Tensor]
"""Keys `[S K, D, C]` and values `[S K, C, D]` of the slots in use."""


@dataclass(frozen=True)
class Heads:
    """H, K and D of a model, and the factor of its scores."""

    query: int
    key: int
    width: int
    scaling: float


@dataclass(frozen=True)
class Groups:
    """Indices that move the queries of n rows into the grid `[P, K, g, G]` of their groups, and back."""

    num_prompts: int
    places: int
    """g."""
    from_tokens: Tensor
    """Indices into `[n N]`: the query of each place of the grid, then of each row `[n, K, G]`."""
    from_rows: Tensor
    """Indices into `[n H]`: the query of each place of the grid. Empty places repeat the query of row 0."""
    from_grid: Tensor
    """Indices into the grid: the place of each row's query, `[n, K, G]`."""

    @staticmethod
    def of(
        prompt_n: Sequence[int], num_prompts: int, heads: Heads, device: torch.device, *, num_filled: int = 0
    ) -> Groups:
        """`prompt_n`: the prompt of each row. The padding rows up to `num_filled` repeat the query of row 0."""
        taken = [0] * num_prompts
        place_n = []
        for prompt in prompt_n:
            place_n.append(taken[prompt])
            taken[prompt] += 1
        prompts, own_place, rows_n = np.array(prompt_n), np.array(place_n), np.arange(len(prompt_n))
        places, per_key = max(taken), heads.query // heads.key
        row_Pg = np.zeros((num_prompts, places), dtype=np.int64)
        row_Pg[prompts, own_place] = rows_n
        head_KG = np.arange(heads.query).reshape(heads.key, per_key)
        row_P1g1, head_K1G = row_Pg[:, None, :, None], head_KG[:, None]
        tokens = heads.query + 2 * heads.key
        grid_n = prompts * heads.key * places + own_place
        row_m = np.arange(max(num_filled, len(prompt_n)))
        asks_m = np.where(row_m < len(prompt_n), row_m, 0)
        from_grid = (grid_n[asks_m][:, None, None] + np.arange(heads.key)[:, None] * places) * per_key
        from_tokens = [(row_P1g1 * tokens + head_K1G).ravel(), (asks_m[:, None, None] * tokens + head_KG).ravel()]

        def on_device(index: np.ndarray) -> Tensor:
            return torch.from_numpy(index).to(device)

        return Groups(
            num_prompts=num_prompts,
            places=places,
            from_tokens=on_device(np.concatenate(from_tokens)),
            from_rows=on_device((row_P1g1 * heads.query + head_K1G).ravel()),
            from_grid=on_device((from_grid + np.arange(per_key)).ravel()),
        )


def attend_rows(
    qkv_nND: Tensor, groups: Groups, prompts: Stored, rows: Stored, mask_n1C: Tensor, heads: Heads
) -> Tensor:
    """The attention of new tokens, `[n, H D]`. `mask_n1C` is added to the scores; columns of prompts come first."""
    num_rows, (keys_p, values_p), (keys_s, values_s) = len(qkv_nND), prompts, rows
    in_grid = (groups.num_prompts * heads.key, -1)
    queries = qkv_nND.reshape(-1, heads.width).index_select(0, groups.from_tokens)
    num_in_grid = len(groups.from_rows)
    grid_QD, own_QD = queries[:num_in_grid], queries[num_in_grid:]
    scores_p = torch.bmm(grid_QD.view(*in_grid, heads.width), keys_p).flatten(0, 1).index_select(0, groups.from_grid)
    scores_s = torch.bmm(own_QD.view(num_rows * heads.key, -1, heads.width), keys_s).flatten(0, 1)
    scores_nHC = torch.cat([scores_p, scores_s], dim=-1).view(num_rows, heads.query, -1)
    scores_nHC = torch.add(mask_n1C, scores_nHC, alpha=heads.scaling)
    weights_nHC = scores_nHC.softmax(dim=-1).to(values_s.dtype)  # it sums in float32 whatever its input is
    columns_p = keys_p.shape[-1]
    shared_QC = weights_nHC.flatten(0, 1)[:, :columns_p].index_select(0, groups.from_rows)
    shared_QD = torch.bmm(shared_QC.view(*in_grid, columns_p), values_p).flatten(0, 1).index_select(0, groups.from_grid)
    own_weights = weights_nHC.view(num_rows * heads.key, -1, weights_nHC.shape[-1])[..., columns_p:]
    output = torch.baddbmm(shared_QD.view(*own_weights.shape[:2], heads.width), own_weights, values_s)
    return output.view(num_rows, -1)


def attend_prompt(qkv_TND: Tensor, mask_TT: Tensor | None, heads: Heads) -> Tensor:
    """The attention within one prompt, `[T, H D]`. Without a mask it is causal."""
    query, key, value = qkv_TND.transpose(0, 1)[None].split([heads.query, heads.key, heads.key], dim=1)
    key, value = (x.repeat_interleave(heads.query // heads.key, dim=1) for x in (key, value))
    output_1HTD = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask_TT, is_causal=mask_TT is None, scale=heads.scaling
    )
    return output_1HTD[0].transpose(0, 1).flatten(1)


class RowAttention(Protocol):
    """The attention of the rows in flight. It knows where they and their prompts are stored."""

    needs_causal_mask: bool
    """Whether a mask must restrict a row to its prompt and its own tokens."""

    def __call__(self, layer: int, qkv_mND: Tensor, ages_m: Tensor, place: Place, mask_m1C: Tensor | None) -> Tensor:
        """Store the new tokens of the rows, and return their attention, `[m, H D]`.

        `qkv_mND` are rotated queries, rotated keys and values. `ages_m` are the numbers of tokens that each row has
        stored after its prompt, and `place` is the same as a `Place`. The mask is added to the scores.
        """
        ...


class ByProducts:
    """Row attention by batched products. Implements `RowAttention`."""

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
        assert mask_m1C is not None, "products need a mask, because they see every column"
        self._rows.write_token(layer, place, *key_value(qkv_mND[: self._num_rows], self._heads))
        if layer not in self._stored:
            prompts = self._prompts.stored(layer, self._groups.num_prompts)
            self._stored[layer] = prompts, self._rows.stored(layer, len(qkv_mND))
        return attend_rows(qkv_mND, self._groups, *self._stored[layer], mask_m1C, self._heads)


class ByKernel:
    """Row attention by a compiled kernel. Implements `RowAttention`. The output of padding rows is 0."""

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
        """`lengths`: the number of tokens of each prompt."""
        self._kernels, self._prompts, self._rows, self._heads = kernels, prompts, rows, heads
        self._num_rows = len(prompt_n)
        self._places = RowPlaces.of(prompt_n, lengths)

    @staticmethod
    def knows(heads: Heads) -> bool:
        """Whether the kernel supports heads of this width."""
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
    """The keys and the values in `qkv_nND`, `[n, K, D]` each."""
    _, key_nKD, value_nKD = qkv_nND.split([heads.query, heads.key, heads.key], dim=1)
    return key_nKD, value_nKD
