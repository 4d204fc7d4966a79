"""Packed rows in any transformers model: its own attention function, called on short right-padded grids.

transformers asks two registries by the name of the attention implementation: one builds the mask once per forward pass,
the other computes attention in every layer. `packed_sdpa` and `packed_eager` are registered in both. While a packing is
active, the mask is not a tensor but the `RowAttention` record below (as flex attention's is a `BlockMask`); it travels
through the model to every layer, gradient checkpointing included, and the attention function that receives it cuts the
packed sequence into grids and calls the plain function on each. So soft caps, sliding windows, sinks and grouped heads
are the model's own affair. Without a packing both behave exactly like `sdpa` and `eager`: generation does not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from posttrain.models.packing import Bucket

_active: ContextVar[tuple[Bucket, ...] | None] = ContextVar("posttrain_packed_buckets", default=None)


@dataclass(frozen=True)
class RowAttention:
    """What layers receive in place of a mask: how to cut the sequence, and the mask that each grid needs, if any."""

    buckets: tuple[Bucket, ...]
    masks: tuple[Tensor | None, ...]


@contextmanager
def packed_rows(buckets: tuple[Bucket, ...]) -> Iterator[None]:
    """Models called inside take their input for rows packed like this."""
    token = _active.set(buckets)
    try:
        yield
    finally:
        _active.reset(token)


def _packed_mask(plain_mask: Callable[..., Tensor | None]) -> Callable[..., Tensor | RowAttention | None]:
    def mask(**settings: Any) -> Tensor | RowAttention | None:
        buckets = _active.get()
        if buckets is None:
            return plain_mask(**settings)
        # The pattern (causal, sliding window, chunks ...) looks only at positions within a row, so that of a bucket's
        # first and longest row serves all of them. Plain causality needs no mask; a custom overlay always does.
        return RowAttention(buckets, tuple(plain_mask(**settings | _first_row(b, settings)) for b in buckets))

    return mask


def _first_row(bucket: Bucket, settings: dict[str, Any]) -> dict[str, Any]:
    """Where the pattern is looked up: in the bucket's first segment, or in the trunk that goes on after its prefix,
    which is longer than any branch."""
    row_start = bucket.prefix_start if bucket.prefix_length else bucket.start
    return {
        "q_length": bucket.longest,
        "kv_length": bucket.prefix_length + bucket.longest,
        "q_offset": row_start + bucket.prefix_length,
        "kv_offset": row_start,
        "allow_is_causal_skip": not settings.get("use_vmap", False),
    }


def _packed_attention(plain_attention: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
    ) -> tuple[Tensor, Any]:
        if not isinstance(attention_mask, RowAttention):
            return plain_attention(module, query, key, value, attention_mask, **settings)
        outputs = []
        for bucket, mask in zip(attention_mask.buckets, attention_mask.masks, strict=True):
            query_RHTD = bucket.spread(_tokens_first(query)).transpose(1, 2)
            seen = (bucket.spread_after_prefix(_tokens_first(x)).transpose(1, 2) for x in (key, value))
            output_RTHD, _ = plain_attention(module, query_RHTD, *seen, mask, **settings)
            outputs.append(bucket.collect(output_RTHD))
        return torch.cat(outputs)[None], None

    return attention


def _tokens_first(x_1HLD: Tensor) -> Tensor:
    """`[1, H, L, D]` -> `[L, H, D]`."""
    return x_1HLD[0].transpose(0, 1)


def _eager_attention(module: nn.Module, *args: Any, **settings: Any) -> tuple[Tensor, Any]:
    """The eager function of the file that defines the layer, as transformers itself would choose it."""
    for kind in type(module).__mro__:
        function = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if function is not None:
            return function(module, *args, **settings)
    raise NotImplementedError(f"{type(module).__name__} has no eager attention function beside it")


AttentionInterface.register("packed_sdpa", _packed_attention(sdpa_attention_forward))
AttentionMaskInterface.register("packed_sdpa", _packed_mask(sdpa_mask))
AttentionInterface.register("packed_eager", _packed_attention(_eager_attention))
AttentionMaskInterface.register("packed_eager", _packed_mask(eager_mask))
