"""Rows in slots: static storage for keys and values in which column = position, so that rows need no padding.

A row stays in its slot. It moves only when a row before it has left and it is the last one: then it takes the free
slot. So the rows in flight are always neighbours, and attention reads them without gathering, with as many columns as
the longest row in flight needs, rounded up.

A prompt goes through the model once and is copied to the slots of its group. While a part of the group still waits for
room, slot 0 holds the prompt. transformers sees the memory for keys and values as a cache.

n rows in flight, V vocabulary, L tokens of a forward pass, of which the first n belong to one row each. S slots, K
key-value heads, C columns, D width of a head.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from weakref import ref

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from posttrain.engines.engine import Arrival
from posttrain.engines.slot_attention import Pass, slots_in_use
from posttrain.engines.transfer import to_device
from posttrain.models.entering import enter
from posttrain.models.footprint import SLOT_COLUMNS, SLOT_GROWTH


@dataclass(frozen=True)
class Writes:
    """The places where the keys and values of one forward pass are written."""

    slots_n: Tensor
    """Slots of the rows that get a token."""
    positions_n: Tensor
    prompts: Sequence[tuple[slice, Sequence[slice]]]
    """For each prompt: its tokens in the sequence, and the runs of slots that get a copy."""


class SlotStorage:
    """One block of memory `[S, K, capacity, D]` per layer for keys and one for values, all with the same capacity.

    The first C columns of each block are in use, and attention sees only these. With `columns_first`, a block is a view
    of memory with the layout `[S, capacity, K, D]`, and attention gets the whole block.
    """

    def __init__(self, num_slots: int, *, columns_first: bool = False) -> None:
        self.num_slots = num_slots
        self.columns_first = columns_first
        self.num_columns = 0
        """C, the number of columns in use."""
        self.capacity = 0
        self.writes: Writes | None = None
        self.cache = SlotCache(self)
        self.written: SlotLayer | None = None
        """The layer that was written last."""

    def use(self, num_columns: int, num_used: int) -> None:
        """Give every slot this many columns; only the first `num_used` slots hold anything."""
        if num_columns > self.capacity:
            self.capacity = max(num_columns, int(self.capacity * SLOT_GROWTH))
            for layer in self.layers:
                layer.grow(self.capacity, self.num_columns, num_used)
        self.num_columns = num_columns

    def copy(self, source: int, targets: slice, length: int) -> None:
        """Copy the first `length` columns of one slot to others, in all layers."""
        for layer in self.layers:
            for block in (layer.keys_SKCD, layer.values_SKCD):
                block[targets, :, :length] = block[source, :, :length]

    def stored(self, key: Tensor, slots: slice) -> tuple[Tensor, Tensor]:
        """Return keys and values `[n, K, C, D]` of the layer whose last update returned `key`."""
        layer = self.written
        if layer is None or layer.handed_out is not key:
            raise NotImplementedError("its layers change keys and values after they were stored")
        in_use = slice(0, self.capacity if self.columns_first else self.num_columns)
        return layer.keys_SKCD[slots, :, in_use], layer.values_SKCD[slots, :, in_use]

    @property
    def layers(self) -> list[SlotLayer]:
        return [layer for layer in self.cache.layers if isinstance(layer, SlotLayer) and layer.is_initialized]


class SlotCache(Cache):
    """The cache that a model gets as `past_key_values`."""

    def __init__(self, storage: SlotStorage) -> None:
        held = ref(storage)
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(_alive(held)))  # pyright: ignore[reportArgumentType]


class SlotLayer(CacheLayerMixin):
    """The block of one layer. `update` returns new keys and values unchanged, because attention reads the block."""

    is_compileable = False
    is_sliding = False

    def __init__(self, storage: SlotStorage) -> None:
        super().__init__()
        self._storage = ref(storage)  # a cycle would keep a step's memory until the next garbage collection
        self.handed_out: Tensor | None = None
        self.keys_SKCD = self.values_SKCD = torch.empty(0)

    @property
    def storage(self) -> SlotStorage:
        return _alive(self._storage)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the block, in the precision in which attention will compute."""
        self.keys_SKCD, self.values_SKCD = (self._block(x) for x in (key_states, value_states))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write `[1, K, L, D]` to the slots, as `storage.writes` says."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        writes = self.storage.writes
        assert writes is not None, "a forward pass is announced before it begins"
        num_rows = len(writes.positions_n)
        for block, new in ((self.keys_SKCD, key_states), (self.values_SKCD, value_states)):
            if num_rows:
                block[writes.slots_n, :, writes.positions_n] = new[0, :, :num_rows].transpose(0, 1).to(block.dtype)
            for part, targets in writes.prompts:
                for slots in targets:
                    block[slots, :, : part.stop - part.start] = new[0, :, part]
        self.handed_out, self.storage.written = key_states, self
        return key_states, value_states

    def grow(self, capacity: int, num_columns: int, num_used: int) -> None:
        """See `SlotStorage.use`."""
        self.keys_SKCD, self.values_SKCD = (
            self._grown(block, capacity, num_columns, num_used) for block in (self.keys_SKCD, self.values_SKCD)
        )

    def _grown(self, block_SKCD: Tensor, capacity: int, num_columns: int, num_used: int) -> Tensor:
        _, heads, _, width = block_SKCD.shape
        grown = self._zeros(heads, capacity, width, block_SKCD)
        grown[:num_used, :, :num_columns] = block_SKCD[:num_used, :, :num_columns]
        return grown

    def _zeros(self, heads: int, capacity: int, width: int, like: Tensor) -> Tensor:
        """Return zeros: masked values have weight 0, but 0 times whatever memory happens to hold can be NaN."""
        if self.storage.columns_first:
            return like.new_zeros(self.storage.num_slots, capacity, heads, width).transpose(1, 2)
        return like.new_zeros(self.storage.num_slots, heads, capacity, width)

    def _block(self, states_1KLD: Tensor) -> Tensor:
        _, heads, _, width = states_1KLD.shape
        device = states_1KLD.device.type
        half = torch.is_autocast_enabled(device) and states_1KLD.dtype == torch.float32
        dtype = torch.get_autocast_dtype(device) if half else states_1KLD.dtype
        return self._zeros(heads, self.storage.capacity, width, states_1KLD.new_empty(0, dtype=dtype))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return sizes that nobody uses: the masks of slots are made elsewhere."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Return 0: rows have different lengths, and every pass is given its positions."""
        return 0

    def get_max_length(self) -> int:
        """Return -1: there is no bound."""
        return -1


def _alive(storage: ref[SlotStorage]) -> SlotStorage:
    found = storage()
    assert found is not None, "slots hold their storage while the model runs"
    return found


class Slots:
    """Rows for models whose cache is keys and values per position, run as `slots_sdpa`, `slots_eager` or
    `slots_varlen`. Implements `Rows`.

    No weights are cached: new `Slots` read the weights as they are then.
    """

    joins_running = True

    def __init__(
        self,
        model: nn.Module,
        accepted: Collection[str],
        *,
        max_rows: int,
        holds_prompt: bool,
        columns_first: bool = False,
    ) -> None:
        """`accepted`: arguments that the model's forward takes. `holds_prompt`: groups may be split when slots run out.
        `columns_first`: see `SlotStorage`."""
        self.model = model
        self.device = next(model.parameters()).device
        self._accepted = accepted
        self._first = int(holds_prompt)
        self._storage = SlotStorage(max_rows + self._first, columns_first=columns_first)
        self._lengths: list[int] = []
        self._positions_n = torch.zeros(0, dtype=torch.long, device=self.device)
        self._held: Tensor | None = None
        """Logits `[1, V]` after the prompt in slot 0; None if no prompt is held."""

    def step(self, ids_B: Tensor, arrivals: Sequence[Arrival]) -> Tensor:
        """See `Rows`. If a prompt is held, the rest of its group must come first among the arrivals."""
        num_rows, held = len(self._lengths), self._held if arrivals else None
        self._make_room([length + 1 for length in self._lengths] + [len(arrival.prompt_ids) for arrival in arrivals])
        slots = _runs(self._first + num_rows, [arrival.count for arrival in arrivals])
        fresh = list(zip(arrivals, slots, strict=True))
        if held is not None:
            (continued, targets), *fresh = fresh
            self._storage.copy(0, targets, len(continued.prompt_ids))
        logits_BV = self._forward(ids_B, fresh) if num_rows or fresh else None
        self._advance(arrivals)
        if not arrivals:
            assert logits_BV is not None, "a pass has rows or prompts"
            return logits_BV
        after_prompts = [held] if held is not None else []
        if logits_BV is not None:
            after_prompts.append(logits_BV[num_rows:])
        after_PV = torch.cat(after_prompts)
        self._held = after_PV[-1:].clone() if arrivals[-1].more else None
        prompts = [p for p, arrival in enumerate(arrivals) for _ in range(arrival.count)]
        arrived_BV = after_PV.index_select(0, to_device(prompts, self.device))
        return arrived_BV if num_rows == 0 or logits_BV is None else torch.cat([logits_BV[:num_rows], arrived_BV])

    def select(self, kept: Sequence[int]) -> None:
        """See `Rows`. Copies only rows that change their place, each to the place of a row that leaves."""
        for place, row in enumerate(kept):
            if place != row:
                target = slice(self._first + place, self._first + place + 1)
                self._storage.copy(self._first + row, target, self._lengths[row])
        self._lengths = [self._lengths[row] for row in kept]
        self._positions_n = self._positions_n[to_device(kept, self.device)]

    def renew(self) -> None:
        """See `Rows`. Every pass reads the weights again anyway; the logits after a held prompt stay."""

    def worth_leaving(self, num_ended: int, num_rows: int) -> bool:
        """Return whether any row has ended: a row that leaves costs at most one copy."""
        return num_ended > 0

    def _forward(self, ids_B: Tensor, fresh: Sequence[tuple[Arrival, slice]]) -> Tensor:
        """Return logits `[n + P, V]` after the token of each row and after each prompt."""
        num_rows = len(ids_B)
        lengths = [len(arrival.prompt_ids) for arrival, _ in fresh]
        parts = _runs(num_rows, lengths)
        ids_L, positions_L = ids_B, self._positions_n
        if fresh:
            prompt_ids = [token for arrival, _ in fresh for token in arrival.prompt_ids]
            prompt_positions = [position for length in lengths for position in range(length)]
            ids_L = torch.cat([ids_L, to_device(prompt_ids, self.device)])
            positions_L = torch.cat([positions_L, to_device(prompt_positions, self.device)])
        last = [*range(num_rows), *(part.stop - 1 for part in parts)]
        last_n = to_device(last, self.device) if fresh else None
        optional = {
            "logits_to_keep": 0 if last_n is None else last_n,
            "output_router_logits": False,  # a config may ask for the balancing loss, which fails with a cache
        }
        holding = [[slots, slice(0, 1)] if arrival.more else [slots] for arrival, slots in fresh]
        rows = slice(self._first, self._first + num_rows)
        slots_n = torch.arange(rows.start, rows.stop, device=self.device)
        self._storage.writes = Writes(slots_n, self._positions_n, list(zip(parts, holding, strict=True)))
        one_pass = Pass(
            self._positions_n,
            num_columns=self._storage.num_columns,
            capacity=self._storage.capacity,
            prompts=tuple(parts),
            stored=lambda key: self._storage.stored(key, rows),
        )
        with slots_in_use(one_pass):
            outputs = enter(
                self.model,
                lambda: self.model(
                    input_ids=ids_L[None],
                    position_ids=positions_L[None],
                    past_key_values=self._storage.cache,
                    use_cache=True,
                    **{name: value for name, value in optional.items() if name in self._accepted},
                ),
            )
        logits_LV = outputs.logits[0]
        return logits_LV if last_n is None or len(logits_LV) == len(last) else logits_LV[last_n]

    def _advance(self, arrivals: Sequence[Arrival]) -> None:
        """Count the tokens that have been stored."""
        arrived = [len(arrival.prompt_ids) for arrival in arrivals for _ in range(arrival.count)]
        self._lengths = [length + 1 for length in self._lengths] + arrived
        self._positions_n = self._positions_n + 1
        if arrived:
            self._positions_n = torch.cat([self._positions_n, to_device(arrived, self.device)])

    def _make_room(self, lengths: Sequence[int]) -> None:
        """Give storage the columns that rows of these lengths need."""
        self._storage.use(-(-max(lengths) // SLOT_COLUMNS) * SLOT_COLUMNS, self._first + len(self._lengths))


def _runs(start: int, counts: Sequence[int]) -> list[slice]:
    """Return neighbouring slices of these lengths.

    >>> _runs(3, [2, 5])
    [slice(3, 5, None), slice(5, 10, None)]
    """
    ends = list(accumulate(counts, initial=start))
    return [slice(a, b) for a, b in pairwise(ends)]
