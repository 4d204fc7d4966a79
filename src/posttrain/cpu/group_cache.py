"""Keys and values of rows whose prompts are shared: each prompt is held once, each row has what came after it.

    prompts     [P, K, D, C_p] keys, [P, K, C_p, D] values      a slot per prompt that some row began with
    rows        [S, K, D, C_s] keys, [S, K, C_s, D] values      a slot per row, column = tokens after the prompt

Keys lie with their columns together: the product of one query with many keys then reads memory in order, which for
bfloat16 on a CPU takes less than half the time.

P prompts, S rows, K key-value heads, D width of a head, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posttrain.models.footprint import GROUP_COLUMNS, SLOT_GROWTH

Place = tuple[Tensor, Tensor] | tuple[slice, int]
"""Slots and columns, `[n]` each; or so many first slots and the one column that all of them write, in half the time."""


class SlotBlocks:
    """The keys and the values of every layer, one slot per prompt or per row; slots in use come first."""

    def __init__(self, num_layers: int) -> None:
        self.num_columns = 0
        """C, the columns in use."""
        self.capacity = 0
        self.num_slots = 0
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    def use(self, num_slots: int, num_columns: int, *, num_held: int) -> bool:
        """Let there be so many slots and columns, these rounded up; no slot from `num_held` on holds anything.

        True where what `stored` gave before is no longer what it gives. Memory that is made anew has no more slots than
        are asked for: late in a batch few rows are left.
        """
        num_columns = -(-num_columns // GROUP_COLUMNS) * GROUP_COLUMNS
        changed = num_columns != self.num_columns
        if num_slots > self.num_slots or num_columns > self.capacity:
            changed = True
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
        """All columns of one slot up to T."""
        keys_SKDC, values_SKCD = self.blocks(layer, key_TKD)
        keys_SKDC[slot, :, :, : len(key_TKD)] = key_TKD.permute(1, 2, 0)
        values_SKCD[slot, :, : len(key_TKD)] = value_TKD.transpose(0, 1)

    def write_token(self, layer: int, place: Place, key_nKD: Tensor, value_nKD: Tensor) -> None:
        """One column of each of the given slots."""
        keys_SKDC, values_SKCD = self.blocks(layer, key_nKD)
        slots, columns = place
        keys_SKDC[slots, :, :, columns] = key_nKD.to(keys_SKDC.dtype)
        values_SKCD[slots, :, columns] = value_nKD.to(values_SKCD.dtype)

    def stored(self, layer: int, num_used: int) -> tuple[Tensor, Tensor]:
        """Keys `[S K, D, C]` and values `[S K, C, D]` of the slots in use, without a copy."""
        blocks = self._layers[layer]
        assert blocks is not None, "something was written before it is read"
        keys_SKDC, values_SKCD = blocks
        keys_sKDC = keys_SKDC[:num_used, :, :, : self.num_columns]
        return keys_sKDC.flatten(0, 1), values_SKCD[:num_used, :, : self.num_columns].flatten(0, 1)

    def copy(self, source: int, target: int, length: int) -> None:
        """The first `length` columns of one slot, in all layers."""
        for keys_SKDC, values_SKCD in filter(None, self._layers):
            keys_SKDC[target, :, :, :length] = keys_SKDC[source, :, :, :length]
            values_SKCD[target, :, :length] = values_SKCD[source, :, :length]

    def close_ranks(self, kept: Sequence[int], lengths: Sequence[int]) -> None:
        """Slot i gets what slot `kept[i]` has; no slot that is still to be moved is overwritten (`engine.py`)."""
        for place, slot in enumerate(kept):
            if place != slot and lengths[slot]:
                self.copy(slot, place, lengths[slot])

    def blocks(self, layer: int, like_nKD: Tensor) -> tuple[Tensor, Tensor]:
        """All slots with all columns that there is room for, of which C may be in use.

        Made in the precision in which attention will compute. Zeros: what is masked has weight 0, and 0 times what
        memory happens to hold may be no number.
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
