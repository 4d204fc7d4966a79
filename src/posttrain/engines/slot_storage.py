"""Memory for the keys and values of rows in slots, seen by transformers as a cache.

S slots, K key-value heads, C columns, D width of a head, L tokens of a forward pass, of which the first n belong to one
row each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from posttrain.models.footprint import SLOT_GROWTH


@dataclass(frozen=True)
class Writes:
    """Where the keys and values of one forward pass go."""

    rows: slice
    """The slots of the rows that get a token."""
    positions_n: Tensor
    prompts: Sequence[tuple[slice, Sequence[slice]]]
    """Of each prompt: its tokens in the sequence, and the runs of slots that get a copy."""


class SlotStorage:
    """One block of memory per layer and for keys and values each, `[S, K, capacity, D]`, all of the same capacity.

    Of each block the first C columns are in use; attention sees no others.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_columns = 0
        """C, the columns in use."""
        self.capacity = 0
        self.writes: Writes | None = None
        self.cache = SlotCache(self)
        self.written: SlotLayer | None = None
        """The layer that was written last."""

    def use(self, num_columns: int, num_used: int) -> None:
        """Let every slot have this many columns; only the first `num_used` slots hold anything."""
        if num_columns > self.capacity:
            self.capacity = max(num_columns, int(self.capacity * SLOT_GROWTH))
            for layer in self.layers:
                layer.grow(self.capacity, self.num_columns, num_used)
        self.num_columns = num_columns

    def copy(self, source: int, targets: slice, length: int) -> None:
        """The first `length` columns of one slot, in all layers."""
        for layer in self.layers:
            for block in (layer.keys_SKCD, layer.values_SKCD):
                block[targets, :, :length] = block[source, :, :length]

    def stored(self, key: Tensor, slots: slice) -> tuple[Tensor, Tensor]:
        """Keys and values `[n, K, C, D]` of the layer whose update has just handed out `key`."""
        layer = self.written
        if layer is None or layer.handed_out is not key:
            raise NotImplementedError("its layers change keys and values after they were stored")
        in_use = slice(0, self.num_columns)
        return layer.keys_SKCD[slots, :, in_use], layer.values_SKCD[slots, :, in_use]

    @property
    def layers(self) -> list[SlotLayer]:
        return [layer for layer in self.cache.layers if isinstance(layer, SlotLayer) and layer.is_initialized]


class SlotCache(Cache):
    """What a model is given as `past_key_values`."""

    def __init__(self, storage: SlotStorage) -> None:
        held = ref(storage)
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(_alive(held)))  # pyright: ignore[reportArgumentType]


class SlotLayer(CacheLayerMixin):
    """The block of one layer. Hands the new keys and values back as they came: attention reads the block by itself."""

    is_compileable = False
    is_sliding = False

    def __init__(self, storage: SlotStorage) -> None:
        super().__init__()
        self._storage = ref(storage)  # a cycle would keep the memory of a step until the garbage is collected
        self.handed_out: Tensor | None = None
        self.keys_SKCD = self.values_SKCD = torch.empty(0)

    @property
    def storage(self) -> SlotStorage:
        return _alive(self._storage)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the block, in the precision in which attention will compute."""
        self.keys_SKCD, self.values_SKCD = (self._block(x) for x in (key_states, value_states))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write `[1, K, L, D]` to the slots as `storage.writes` says."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        writes = self.storage.writes
        assert writes is not None, "a forward pass is announced before it begins"
        num_rows = len(writes.positions_n)
        rows_n = torch.arange(writes.rows.start, writes.rows.stop, device=key_states.device)
        for block, new in ((self.keys_SKCD, key_states), (self.values_SKCD, value_states)):
            if num_rows:
                block[rows_n, :, writes.positions_n] = new[0, :, :num_rows].transpose(0, 1).to(block.dtype)
            for part, targets in writes.prompts:
                for slots in targets:
                    block[slots, :, : part.stop - part.start] = new[0, :, part]
        self.handed_out, self.storage.written = key_states, self
        return key_states, value_states

    def grow(self, capacity: int, num_columns: int, num_used: int) -> None:
        """See `SlotStorage.use`."""
        self.keys_SKCD, self.values_SKCD = (
            _grown(block, capacity, num_columns, num_used) for block in (self.keys_SKCD, self.values_SKCD)
        )

    def _block(self, states_1KLD: Tensor) -> Tensor:
        _, heads, _, width = states_1KLD.shape
        device = states_1KLD.device.type
        half = torch.is_autocast_enabled(device) and states_1KLD.dtype == torch.float32
        dtype = torch.get_autocast_dtype(device) if half else states_1KLD.dtype
        shape = (self.storage.num_slots, heads, self.storage.capacity, width)
        return torch.zeros(shape, dtype=dtype, device=states_1KLD.device)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The masks of slots are not made from these."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Rows differ; positions are given with every pass."""
        return 0

    def get_max_length(self) -> int:
        """No bound."""
        return -1


def _alive(storage: ref[SlotStorage]) -> SlotStorage:
    found = storage()
    assert found is not None, "slots hold their storage while the model runs"
    return found


def _grown(block_SKCD: Tensor, capacity: int, num_columns: int, num_used: int) -> Tensor:
    """New columns are zeros: what is masked has weight 0, and 0 times what memory happens to hold may be no number."""
    slots, heads, _, width = block_SKCD.shape
    grown = block_SKCD.new_zeros(slots, heads, capacity, width)
    grown[:num_used, :, :num_columns] = block_SKCD[:num_used, :, :num_columns]
    return grown
