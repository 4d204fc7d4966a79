"""Rows of a plain decoder: each prompt is computed and stored once, whatever the size of its group.

A row stays in its slot. It moves only when a row before it has left and it takes the free slot. The same holds for
prompts, which leave when no row that began with them is left. A prompt whose group still waits for room stays.

oneDNN compiles a kernel for each shape of a product. If products go through it, the rows are padded to one of a few
numbers with copies of row 0. These repeat the query of row 0, read whatever is in their slots and write nothing, and
their results are dropped.

n rows in flight, m rows including the padding rows, P prompts, V vocabulary, L tokens of a forward pass, C columns of
prompts and rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function

from posttrain.cpu.group_attention import (
    ByKernel,
    ByProducts,
    Place,
    RowAttention,
    SlotBlocks,
    attend_prompt,
    key_value,
)
from posttrain.cpu.kernels import Kernels, can_compute
from posttrain.cpu.onednn import PackedLinear
from posttrain.cpu.plain_decoder import PlainDecoder
from posttrain.engines.engine import Arrival, close_ranks

MaskFunction = Callable[..., Tensor]
"""A function (batch, head, position of the query, position of the key) -> whether the query sees the key. Transformers
makes masks from such functions."""

_NOWHERE = 2**40
"""Position of an empty column, after every token."""


@dataclass(frozen=True)
class _InFlight:
    """What a pass needs to know about the rows. It is valid until the rows or the columns in use change."""

    attention: RowAttention
    slots_n: Tensor
    starts_m: Tensor
    """Position of the first token after the prompt, for each row."""
    columns: tuple[int, int]
    """Numbers of columns of prompts and of rows."""

    @cached_property
    def seen_mC(self) -> Tensor:
        """Position of the token that each column holds or will hold."""
        columns_p, columns_s = (torch.arange(number, device=self.starts_m.device) for number in self.columns)
        starts_m1 = self.starts_m[:, None]
        return torch.cat([columns_p.where(columns_p < starts_m1, _NOWHERE), starts_m1 + columns_s], dim=1)


class GroupRows:
    """Rows of a plain decoder. Implements `Rows`. It reads the weights when it is made, so make a new one after the
    weights have changed."""

    joins_running = True

    def __init__(
        self, model: nn.Module, mask_functions: Sequence[MaskFunction], kernels: Kernels | None = None
    ) -> None:
        """`mask_functions`: one for each layer. Raises NotImplementedError for a model that is no plain decoder.

        Without `kernels`, or if they lack a function that the model needs, operations of PyTorch compute the same.
        """
        weight = next(model.parameters())
        self.device, self._dtype = weight.device, _autocast_dtype(weight)
        self._kernels = kernels if can_compute(self.device, weight.dtype, self._dtype) else None
        self._model = model
        self.decoder = PlainDecoder(model, self._kernels)
        self._mask_functions = mask_functions
        self._fills_up = _compiles_kernels(model, self._dtype)
        self._heads = self.decoder.heads
        self._prompts = SlotBlocks(self.decoder.num_layers)
        self._rows = SlotBlocks(self.decoder.num_layers)
        self._lengths_P: list[int] = []
        self._prompt_n: list[int] = []
        self._ages: list[int] = []
        """Number of tokens after the prompt that each row has stored."""
        self._ages_m = torch.zeros(0, dtype=torch.long, device=self.device)
        self._in_flight: _InFlight | None = None
        self._held: tuple[int, Tensor] | None = None
        """Index of the prompt whose group waits for room, and the logits `[1, V]` after this prompt."""

    def step(self, ids_B: Tensor, arrivals: Sequence[Arrival]) -> Tensor:
        """See `Rows`. The rest of a group whose prompt is held comes first among the arrivals."""
        held = self._held if arrivals else None
        fresh = arrivals[1:] if held else arrivals
        num_rows, num_prompts = len(self._prompt_n), len(self._lengths_P)
        self._make_room([len(arrival.prompt_ids) for arrival in fresh])
        if num_rows or fresh:
            logits_BV = self._forward(ids_B, [arrival.prompt_ids for arrival in fresh])
        else:
            logits_BV = torch.empty(0, device=self.device)
        self._ages = [age + 1 for age in self._ages]
        self._ages_m = self._ages_m + 1
        if not arrivals:
            return logits_BV
        places = [*([held[0]] if held else []), *range(num_prompts, num_prompts + len(fresh))]
        self._lengths_P += [len(arrival.prompt_ids) for arrival in fresh]
        after_prompts = [*([held[1]] if held else []), *(logits_V[None] for logits_V in logits_BV[num_rows:])]
        self._held = (places[-1], after_prompts[-1].clone()) if arrivals[-1].more else None
        return torch.cat([logits_BV[:num_rows], *self._begin(arrivals, places, after_prompts)])

    def select(self, kept: Sequence[int]) -> None:
        """See `Rows`. Only rows and prompts that move are copied, each to the slot of one that left."""
        self._rows.close_ranks(kept, self._ages)
        self._ages = [self._ages[row] for row in kept]
        self._prompt_n = [self._prompt_n[row] for row in kept]
        needed = set(self._prompt_n) | ({self._held[0]} if self._held else set())
        places = close_ranks(sorted(needed))
        self._prompts.close_ranks(places, self._lengths_P)
        self._lengths_P = [self._lengths_P[prompt] for prompt in places]
        moved = {prompt: place for place, prompt in enumerate(places)}
        self._prompt_n = [moved[prompt] for prompt in self._prompt_n]
        if self._held:
            self._held = (moved[self._held[0]], self._held[1])
        self._rows_changed()

    def renew(self) -> None:
        """See `Rows`."""
        self.decoder = PlainDecoder(self._model, self._kernels)

    def worth_leaving(self, num_ended: int, num_rows: int) -> bool:
        """See `Rows`. Leaving is cheap: each row that leaves costs at most one copy."""
        return num_ended > 0

    def _begin(
        self, arrivals: Sequence[Arrival], places: Sequence[int], after_prompts: Sequence[Tensor]
    ) -> list[Tensor]:
        """Start new rows after these prompts, and return the first logits `[count, V]` of each group."""
        new = [place for place, arrival in zip(places, arrivals, strict=True) for _ in range(arrival.count)]
        self._prompt_n += new
        self._ages += [0] * len(new)
        self._rows_changed()
        return [logits_1V.expand(arrival.count, -1) for logits_1V, arrival in zip(after_prompts, arrivals, strict=True)]

    def _forward(self, ids_B: Tensor, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Run a pass; return the logits `[n + P, V]` after the new token of each row and after each new prompt."""
        num_rows, held_prompts = len(self._prompt_n), len(self._lengths_P)
        num_filled = self._computed(num_rows)
        positions_m, row_masks = self._see(num_rows)
        ends = list(accumulate(map(len, prompts), initial=num_filled))
        parts = [slice(a, b) for a, b in pairwise(ends)]
        ids_L, positions_L = torch.cat([ids_B, ids_B[:1].expand(num_filled - num_rows)]), positions_m
        if prompts:
            longest_T = torch.arange(max(map(len, prompts)), device=self.device)
            ids_L = torch.cat([ids_L, torch.tensor([token for ids in prompts for token in ids], device=self.device)])
            positions_L = torch.cat([positions_L, *(longest_T[: len(ids)] for ids in prompts)])
            prompt_masks = {f: prompt_mask(f, longest_T) for f in dict.fromkeys(self._mask_functions)}

        def attend(layer: int, qkv_LND: Tensor) -> Tensor:
            qkv_LND, function, outputs = qkv_LND.to(self._dtype), self._mask_functions[layer], []
            if num_rows:
                outputs.append(self._attend_rows(layer, qkv_LND[:num_filled], row_masks[function]))
            for slot, part in enumerate(parts, start=held_prompts):
                self._prompts.write_prompt(layer, slot, *key_value(qkv_LND[part], self._heads))
                mask_TT = prompt_masks[function]
                length = part.stop - part.start
                mask_TT = None if mask_TT is None else mask_TT[:length, :length]
                outputs.append(attend_prompt(qkv_LND[part], mask_TT, self._heads))
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        after_prompts = [self._lengths_P[prompt] + age for prompt, age in zip(self._prompt_n, self._ages, strict=True)]
        below = 1 + max([*after_prompts, *(len(ids) - 1 for ids in prompts)])
        hidden_LE = self.decoder.hidden(ids_L, positions_L, attend, below=below)
        if not prompts:
            return self.decoder.logits(hidden_LE)[:num_rows]
        return self.decoder.logits(hidden_LE[[*range(num_rows), *(part.stop - 1 for part in parts)]])

    def _see(self, num_rows: int) -> tuple[Tensor, dict[MaskFunction, Tensor | None]]:
        """Positions `[m]` of the new tokens, and the mask `[m, 1, C]` of each mask function for them."""
        if not num_rows:
            return self._ages_m, {}
        if self._in_flight is None:
            self._in_flight = self._gather()
        now = self._in_flight
        positions_m = now.starts_m + self._ages_m
        functions = dict.fromkeys(self._mask_functions)
        masks = {f: self._row_mask(f, positions_m) for f in functions}
        return positions_m, masks

    def _rows_changed(self) -> None:
        """Discard what depends on the rows in flight, after they have changed."""
        self._ages_m = torch.tensor(self._fill_up(self._ages), dtype=torch.long, device=self.device)
        self._in_flight = None

    def _computed(self, num_rows: int) -> int:
        return filled_up(num_rows) if self._fills_up else num_rows

    def _fill_up(self, values: Sequence[int]) -> list[int]:
        """Extend values of the rows to the padding rows, which get the value of row 0."""
        return [*values, *list(values[:1]) * (self._computed(len(values)) - len(values))]

    def _gather(self) -> _InFlight:
        starts_m = self._fill_up([self._lengths_P[prompt] for prompt in self._prompt_n])
        return _InFlight(
            attention=self._attention(num_filled=len(starts_m)),
            slots_n=torch.arange(len(self._prompt_n), device=self.device),
            starts_m=torch.tensor(starts_m, dtype=torch.long, device=self.device),
            columns=(self._prompts.num_columns, self._rows.num_columns),
        )

    def _attend_rows(self, layer: int, qkv_mND: Tensor, mask_m1C: Tensor | None) -> Tensor:
        now = self._in_flight
        assert now is not None, "rows must be gathered before a pass"
        return now.attention(layer, qkv_mND, self._ages_m, self._place(now), mask_m1C)

    def _attention(self, *, num_filled: int) -> RowAttention:
        kernels, stored = self._kernels, (self._prompts, self._rows, self._heads)
        if kernels is not None and ByKernel.knows(self._heads):
            return ByKernel(kernels, *stored, prompt_n=self._prompt_n, lengths=self._lengths_P)
        num_prompts = len(self._lengths_P)
        filled = {"num_prompts": num_prompts, "num_filled": num_filled, "device": self.device}
        return ByProducts(*stored, prompt_n=self._prompt_n, **filled)

    def _row_mask(self, function: MaskFunction, positions_m: Tensor) -> Tensor | None:
        """The mask `[m, 1, C]` of the rows; None if attention needs none."""
        now = self._in_flight
        assert now is not None, "rows must be gathered before they are masked"
        if function is causal_mask_function and not now.attention.needs_causal_mask:
            return None
        return _row_mask(function, positions_m[:, None], now.seen_mC).to(self._dtype)

    def _place(self, now: _InFlight) -> Place:
        """The place of the new tokens of the rows: a single column as long as all rows began at the same time."""
        if min(self._ages) == max(self._ages):
            return slice(0, len(self._ages)), self._ages[0]
        return now.slots_n, self._ages_m[: len(self._ages)]

    def _make_room(self, fresh_lengths: Sequence[int]) -> None:
        """Allocate the slots and columns that this pass needs."""
        held, rows = len(self._lengths_P), len(self._prompt_n)
        needed: list[tuple[SlotBlocks, int, int, int]] = []
        if lengths := [*self._lengths_P, *fresh_lengths]:
            needed.append((self._prompts, len(lengths), max(lengths), held))
        if rows:
            needed.append((self._rows, self._computed(rows), max(self._ages) + 1, rows))
        if any(blocks.would_change(slots, columns) for blocks, slots, columns, _ in needed):
            self._in_flight = None  # before blocks grow: it holds views of the old ones, which would stay in memory
        for blocks, slots, columns, num_held in needed:
            blocks.use(slots, columns, num_held=num_held)


def filled_up(num_rows: int) -> int:
    """The padded number of rows: the next of four steps between one power of two and the next.

    >>> [filled_up(n) for n in (0, 1, 7, 9, 16, 17, 33, 64)]
    [0, 1, 7, 10, 16, 20, 40, 64]
    """
    step = 1 << max(0, (num_rows - 1).bit_length() - 3)
    return -(-num_rows // step) * step


def _compiles_kernels(model: nn.Module, dtype: torch.dtype) -> bool:
    """Whether products go through oneDNN: with packed weights, and in half precision on a CPU."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    packed = any(isinstance(module, PackedLinear) for module in model.modules())
    return packed or (on_cpu and dtype in (torch.bfloat16, torch.float16))


def _row_mask(function: MaskFunction, positions_n1: Tensor, seen_nC: Tensor) -> Tensor:
    """The mask `[n, 1, C]`: 0 for columns that a row sees, -inf elsewhere, such as for a slot's old content."""
    sees_nC = seen_nC <= positions_n1
    if function is not causal_mask_function:
        first = torch.zeros((), dtype=torch.long, device=seen_nC.device)
        sees_nC = sees_nC & function(first, first, positions_n1, seen_nC)
    return torch.zeros(sees_nC.shape, device=seen_nC.device).masked_fill_(~sees_nC, -torch.inf)[:, None]


def prompt_mask(function: MaskFunction, positions_T: Tensor) -> Tensor | None:
    """The mask `[T, T]` of a prompt; None if it is plainly causal, which the attention function does itself."""
    if function is causal_mask_function:
        return None
    first = torch.zeros((), dtype=torch.long, device=positions_T.device)
    query_T1 = positions_T[:, None]
    return function(first, first, query_T1, positions_T) & (positions_T <= query_T1)


def _autocast_dtype(weight: Tensor) -> torch.dtype:
    """The precision of products, in which keys and values are also stored."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
