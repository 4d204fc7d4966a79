"""Rows that are decoded together: one forward pass over the prompts, then one token per row and step.

Prompts are padded on the LEFT, so that all rows end in the same column of the key-value cache and a step appends one
column. Padding is masked, and positions are counted from each row's first real token.

B rows, T tokens (columns), V vocabulary, H key-value heads, D width of a head.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from posttrain.errors import ModelError

_PADDING = 0
"""Any id will do: padding is never attended to."""


class Decoding:
    """B rows in flight. Call `prefill` once, then `select` (any rows, also repeated or dropped) and `step` at will.

    Nothing is kept beyond the rows: a new `Decoding` reads the weights as they are then.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        causal_lm = base_model(model)
        self.cache = new_cache(causal_lm)
        self._accepted = inspect.signature(causal_lm.forward).parameters.keys()
        self._recurrent = "past_key_values" not in self._accepted
        if self._recurrent and "cache_params" not in self._accepted:
            raise ModelError(
                given=f"{type(causal_lm).__name__}.forward takes neither past_key_values nor cache_params",
                allowed="a causal language model that can continue from a cache",
                fix="Choose another model, or another sampler.",
            )
        self._length = 0
        self._padding_B = torch.zeros(0, dtype=torch.long, device=self.device)
        self._padded = False

    def prefill(self, prompt_ids: Sequence[Sequence[int]]) -> Tensor:
        """Logits `[B, V]` of the token after each prompt. Prompts have at least one token."""
        longest = max(len(ids) for ids in prompt_ids)
        rows = [[_PADDING] * (longest - len(ids)) + list(ids) for ids in prompt_ids]
        padding = [longest - len(ids) for ids in prompt_ids]
        self._padding_B = torch.tensor(padding, device=self.device)
        self._padded = any(padding)
        return self._forward(torch.tensor(rows, device=self.device))

    def step(self, ids_B: Tensor) -> Tensor:
        """Append one token to every row: logits `[B, V]` of the one after it."""
        return self._forward(ids_B.unsqueeze(-1))

    def select(self, rows_B: Tensor) -> None:
        """Go on with these rows, in this order: repeat a prompt for its group, or let finished rows leave the batch."""
        self._padding_B = self._padding_B[rows_B]
        self.cache.reorder_cache(rows_B)  # pyright: ignore[reportArgumentType]
        self._trim()

    def fork(self) -> Decoding:
        """An independent copy in the same state."""
        twin = copy.copy(self)
        twin.cache = copy.deepcopy(self.cache)
        return twin

    def _forward(self, ids_BT: Tensor) -> Tensor:
        start, self._length = self._length, self._length + ids_BT.shape[1]
        columns_T = torch.arange(self._length, device=self.device)
        masked = self._padded and not (self._recurrent and start)  # a recurrent state has no padding in it
        optional = {
            "past_key_values": self.cache,
            "cache_params": self.cache,
            "position_ids": (columns_T[start:] - self._padding_B.unsqueeze(-1)).clamp(min=0),
            "logits_to_keep": 1,
            "output_router_logits": False,  # a config may ask for the balancing loss, which fails beside a cache
        }
        outputs = self.model(
            input_ids=ids_BT,
            attention_mask=(columns_T >= self._padding_B.unsqueeze(-1)).long() if masked else None,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._accepted},
        )
        return outputs.logits[:, -1]

    def _trim(self) -> None:
        """Forget the columns that are padding in every row that is left."""
        common = int(self._padding_B.min())
        layers = [layer for layer in self.cache.layers if isinstance(layer, GrowingLayer)]
        if common and len(layers) == len(self.cache.layers):
            for layer in layers:
                layer.drop_columns(common)
            self._length -= common
            self._padding_B = self._padding_B - common
        self._padded = bool(self._padding_B.any())


class GrowingLayer(DynamicLayer):
    """Keys and values of one attention layer, written in place into memory that grows by half when it is full.

    `DynamicLayer` copies the whole cache to append a column, which makes T steps cost O(T^2): with 64 rows of 1000
    tokens the copies take several times as long as the model.
    """

    _keys: Tensor
    _values: Tensor
    _used: int

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start with no columns and no room for any."""
        super().lazy_initialization(key_states, value_states)
        self._hold(key_states[:, :, :0], value_states[:, :, :0])

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append columns `[B, H, T, D]` and return all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self._used, self._used + key_states.shape[-2]
        if end > self._keys.shape[-2]:
            self._keys, self._values = (_with_room(x[:, :, :start], end + end // 2) for x in (self._keys, self._values))
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        self._used = end
        self.keys, self.values = self._keys[:, :, :end], self._values[:, :, :end]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order. The room to grow is made anew by the next `update`."""
        if self.is_initialized:
            self._hold(*(x[:, :, : self._used].index_select(0, beam_idx) for x in (self._keys, self._values)))

    def drop_columns(self, count: int) -> None:
        """Forget the first `count` columns of every row."""
        if self.is_initialized:
            self._hold(*(x[:, :, count : self._used] for x in (self._keys, self._values)))

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        self.keys = self._keys = keys
        self.values = self._values = values
        self._used = keys.shape[-2]


def new_cache(model: PreTrainedModel) -> Cache:
    """The cache that transformers would make, its plain attention layers made to grow in place.

    Sliding windows, linear attention and whatever else an architecture brings keep their own kind of layer.
    """
    cache = DynamicCache(config=model.config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, inside of a peft wrapper or not."""
    causal_lm = model.get_base_model() if isinstance(model, PeftModel) else model
    if not isinstance(causal_lm, PreTrainedModel):
        raise ModelError(
            given=f"the local sampler got a {type(causal_lm).__name__}",
            allowed="a causal language model of transformers, with or without a peft adapter",
            fix="Load the model with posttrain.models.load_model.",
        )
    return causal_lm


def _with_room(columns: Tensor, capacity: int) -> Tensor:
    """A copy that has room for `capacity` columns."""
    rows, heads, used, width = columns.shape
    roomy = columns.new_empty(rows, heads, capacity, width)
    roomy[:, :, :used] = columns
    return roomy
