"""The generic way to decode rows together, for models that keep more than keys and values per position.

One forward pass processes the prompts; then each step adds one token per row. No row joins while others are decoded.
Prompts are padded on the LEFT, so that all rows end in the same column of the key-value cache and a step appends one
column. Padding is masked, and positions count from each row's first real token.

B rows, T tokens (columns), V vocabulary, H key-value heads, D width of a head.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from posttrain.engines.engine import Arrival
from posttrain.engines.transfer import to_device
from posttrain.errors import ModelError
from posttrain.models.entering import enter

_PADDING = 0
"""Token id of padding. Any id will do, because padding is never attended to."""


LEAVE_WHEN_ONE_IN = 8
"""Ended rows leave the batch once they are one in this many. Earlier costs copies, later costs computing them."""


class PaddedRows:
    """Rows for any transformers causal LM that can continue from a cache. Implements `Rows`.

    No weights are cached: new `PaddedRows` read the weights as they are then.
    """

    joins_running = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self._causal_lm = base_model(model)
        self._accepted = accepted_arguments(self._causal_lm)
        self._recurrent = "past_key_values" not in self._accepted
        if self._recurrent and "cache_params" not in self._accepted:
            raise ModelError(
                given=f"{type(self._causal_lm).__name__}.forward takes neither past_key_values nor cache_params",
                allowed="a causal language model that can continue from a cache",
                fix="Choose another model, or another sampler.",
            )
        self._start([0])

    def step(self, ids_B: Tensor, arrivals: Sequence[Arrival]) -> Tensor:
        """See `Rows`."""
        return self._prefill(arrivals) if arrivals else self._forward(ids_B.unsqueeze(-1))

    def select(self, kept: Sequence[int]) -> None:
        """See `Rows`."""
        rows_B = to_device(kept, self.device)
        self._padding = [self._padding[row] for row in kept]
        self._padding_B = self._padding_B[rows_B]
        self.cache.reorder_cache(rows_B)  # pyright: ignore[reportArgumentType]
        if len(kept):
            self._trim()

    def renew(self) -> None:
        """See `Rows`. Every pass reads the model's weights again."""

    def worth_leaving(self, num_ended: int, num_rows: int) -> bool:
        """Return whether enough rows have ended: when rows leave, the whole cache is copied."""
        return num_ended * LEAVE_WHEN_ONE_IN >= num_rows

    def _start(self, padding: Sequence[int]) -> None:
        """Make an empty cache, for rows with this much padding before them."""
        self.cache = new_cache(self._causal_lm)
        self._length = 0
        self._padding = list(padding)
        self._padding_B = to_device(padding, self.device)

    def _prefill(self, arrivals: Sequence[Arrival]) -> Tensor:
        """Put each prompt through the model once, then repeat its cache for its rows."""
        longest = max(len(arrival.prompt_ids) for arrival in arrivals)
        self._start([longest - len(arrival.prompt_ids) for arrival in arrivals])
        ids = [[_PADDING] * (longest - len(arrival.prompt_ids)) + list(arrival.prompt_ids) for arrival in arrivals]
        ids_PT = to_device([token for row in ids for token in row], self.device).view(len(ids), longest)
        logits_PV = self._forward(ids_PT)
        rows = [p for p, arrival in enumerate(arrivals) for _ in range(arrival.count)]
        if len(rows) > len(arrivals):
            self.select(rows)
        return logits_PV[to_device(rows, self.device)]

    def _forward(self, ids_BT: Tensor) -> Tensor:
        start, self._length = self._length, self._length + ids_BT.shape[1]
        columns_T = torch.arange(self._length, device=self.device)
        masked = any(self._padding) and not (self._recurrent and start)  # a recurrent state contains no padding
        optional = {
            "past_key_values": self.cache,
            "cache_params": self.cache,
            "position_ids": (columns_T[start:] - self._padding_B.unsqueeze(-1)).clamp(min=0),
            "logits_to_keep": 1,
            "output_router_logits": False,  # a config may ask for the balancing loss, which fails with a cache
        }
        outputs = enter(
            self.model,
            lambda: self.model(
                input_ids=ids_BT,
                attention_mask=(columns_T >= self._padding_B.unsqueeze(-1)).long() if masked else None,
                use_cache=True,
                **{name: value for name, value in optional.items() if name in self._accepted},
            ),
        )
        return outputs.logits[:, -1]

    def _trim(self) -> None:
        """Drop the columns that are padding in every remaining row."""
        common = min(self._padding)
        layers = [layer for layer in self.cache.layers if isinstance(layer, GrowingLayer)]
        if common and len(layers) == len(self.cache.layers):
            for layer in layers:
                layer.drop_columns(common)
            self._length -= common
            self._padding = [padding - common for padding in self._padding]
            self._padding_B = self._padding_B - common


class GrowingLayer(DynamicLayer):
    """Keys and values of one attention layer, written in place into memory that grows by half when it is full.

    `DynamicLayer` copies the whole cache to append a column, which makes T steps cost O(T^2). With 64 rows of 1000
    tokens, the copies take several times as long as the model.
    """

    _keys: Tensor
    _values: Tensor
    _used: int

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start without columns, and without room for any."""
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self._hold(key_states[:, :, :0], value_states[:, :, :0])

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append columns `[B, H, T, D]` and return all columns."""
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
        """Keep these rows, in this order. The next `update` makes room to grow again."""
        if self.is_initialized:
            self._hold(*(x[:, :, : self._used].index_select(0, beam_idx) for x in (self._keys, self._values)))

    def drop_columns(self, count: int) -> None:
        """Drop the first `count` columns of every row."""
        if self.is_initialized:
            self._hold(*(x[:, :, count : self._used] for x in (self._keys, self._values)))

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        self.keys = self._keys = keys
        self.values = self._values = values
        self._used = keys.shape[-2]


def new_cache(model: PreTrainedModel) -> Cache:
    """Return the cache that transformers would make, with plain attention layers that grow in place.

    Layers of other kinds, such as sliding windows and linear attention, stay as they are.
    """
    cache = DynamicCache(config=model.config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def accepted_arguments(causal_lm: PreTrainedModel) -> Collection[str]:
    """Return the names of the arguments of the model's forward."""
    return inspect.signature(causal_lm.forward).parameters.keys()


def base_model(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model itself, also from inside a peft wrapper."""
    causal_lm = model.get_base_model() if isinstance(model, PeftModel) else model
    if not isinstance(causal_lm, PreTrainedModel):
        raise ModelError(
            given=f"the local sampler got a {type(causal_lm).__name__}",
            allowed="a causal language model of transformers, with or without a peft adapter",
            fix="Load the model with posttrain.models.load_model.",
        )
    return causal_lm


def is_hooked(module: nn.Module) -> bool:
    """Return whether something hooks into calls of this module."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _with_room(columns: Tensor, capacity: int) -> Tensor:
    """Return a copy that has room for `capacity` columns."""
    rows, heads, used, width = columns.shape
    roomy = columns.new_empty(rows, heads, capacity, width)
    roomy[:, :, :used] = columns
    return roomy
