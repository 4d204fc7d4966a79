"""Packed rows in any transformers model: its own attention function, called on short right-padded grids.

transformers looks up the attention implementation by name in two registries: one builds the mask once per forward pass,
the other computes attention in every layer. `packed_sdpa` and `packed_eager` are registered in both. While a packing is
active, the mask is not a tensor but a `RowMask` (as flex attention's is a `BlockMask`). It travels through the model to
every layer, also with gradient checkpointing. The attention function that receives it cuts the packed sequence into
grids and calls the plain function on each. So the model's own code handles soft caps, sliding windows, sinks and
grouped heads. For attention that is only causal, `packed_sdpa` calls a registered acceleration (acceleration.py), which
may need no grids. Without a packing, both behave exactly like `sdpa` and `eager`, so generation is not affected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

from posttrain.models.acceleration import RowAttention, acceleration
from posttrain.models.packing import Bucket, Segment, make_buckets


@dataclass(frozen=True)
class Manner:
    """How attention of packed rows may be computed; found by trying the model (forward_path.py)."""

    plain: bool = False
    """Whether in every layer a token sees itself and all tokens before it in its row. Only determined on a GPU: on a
    CPU, each pass looks at its own masks."""
    accelerated: bool = True
    """Whether registered accelerations may be used."""


PLAIN_MANNER = Manner()
"""The default, if nothing was tried."""


@dataclass(frozen=True)
class _Cuts:
    """How the packed sequence is cut into grids, and the acceleration that needs none, if there is one."""

    segments: Sequence[Segment]
    device: torch.device
    manner: Manner
    accelerated: RowAttention | None

    @property
    def plain(self) -> bool:
        return self.manner.plain

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        return make_buckets(self.segments, self.device)


_active: ContextVar[_Cuts | None] = ContextVar("posttrain_packed_rows", default=None)


@dataclass(frozen=True)
class RowMask:
    """Passed to layers instead of a mask: how to cut the sequence, and the mask of each grid that needs one."""

    cuts: _Cuts
    make_mask: Callable[[Bucket], Tensor | None]

    @cached_property
    def masks(self) -> tuple[Tensor | None, ...]:
        return tuple(map(self.make_mask, self.cuts.buckets))

    @cached_property
    def is_causal(self) -> bool:
        """Whether every token sees itself and all tokens before it in its row. The masks on a GPU are not read, because
        that would wait for it."""
        return self.cuts.plain or (self.cuts.device.type == "cpu" and all(map(_is_causal, self.masks)))


@contextmanager
def packed_rows(segments: Sequence[Segment], device: torch.device, manner: Manner = PLAIN_MANNER) -> Iterator[None]:
    """Let models called inside treat their input as rows packed like this."""
    of_rows = acceleration(device.type).row_attention(segments, device) if manner.accelerated else None
    token = _active.set(_Cuts(segments, device, manner, of_rows))
    try:
        yield
    finally:
        _active.reset(token)


def rows_of_now() -> tuple[Sequence[Segment], Manner] | None:
    """Return the arguments of the active `packed_rows`; None outside of it."""
    cuts = _active.get()
    return None if cuts is None else (cuts.segments, cuts.manner)


def _packed_mask(plain_mask: Callable[..., Tensor | None]) -> Callable[..., Tensor | RowMask | None]:
    def mask(**settings: Any) -> Tensor | RowMask | None:
        cuts = _active.get()
        if cuts is None:
            return plain_mask(**settings)
        if cuts.plain:
            if settings["mask_function"] is not causal_mask_function:
                raise NotImplementedError("a layer's attention is more than causal")
            settings |= {"attention_mask": None}

        # The pattern (causal, sliding window, chunks ...) depends only on positions within a row. So the mask of a
        # bucket's first, longest row serves all its rows. Plain causality needs no mask; a custom overlay always does.
        row_mask = RowMask(cuts, lambda bucket: plain_mask(**settings | _first_row(bucket, settings)))
        if not cuts.plain:
            row_mask.masks  # noqa: B018  # made now, because what the pattern reads is valid only during this pass
        return row_mask

    return mask


def _first_row(bucket: Bucket, settings: dict[str, Any]) -> dict[str, Any]:
    """Return where to evaluate the pattern: in the bucket's first segment, or in the trunk that continues after its
    prefix and is longer than any branch."""
    row_start = bucket.prefix_start if bucket.prefix_length else bucket.start
    return {
        "q_length": bucket.longest,
        "kv_length": bucket.prefix_length + bucket.longest,
        "q_offset": row_start + bucket.prefix_length,
        "kv_offset": row_start,
        "allow_is_causal_skip": not settings.get("use_vmap", False),
    }


def _is_causal(mask: Tensor | None) -> bool:
    """Return whether `[1, 1, T, S]` is causal, with the last key belonging to the last query. None means causal."""
    if mask is None:
        return True
    if mask.dtype != torch.bool or mask.shape[:2] != (1, 1):
        return False
    queries, keys = mask.shape[2:]
    return torch.equal(mask[0, 0], torch.ones_like(mask[0, 0]).tril(keys - queries))


def _packed_attention(plain_attention: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
    ) -> tuple[Tensor, Any]:
        if not isinstance(attention_mask, RowMask):
            return plain_attention(module, query, key, value, attention_mask, **settings)
        query, key, value = (_tokens_first(_as_autocast_would(x)) for x in (query, key, value))
        accelerated = attention_mask.cuts.accelerated
        if accelerated is not None and plain_attention is _sdpa and attention_mask.is_causal:
            output_LHE = accelerated(module, query, key, value, settings)
            if output_LHE is not None:
                return output_LHE[None], None
        buckets, masks = attention_mask.cuts.buckets, attention_mask.masks
        queries = _Spread.apply(query, buckets, False)
        keys, values = (_Spread.apply(x, buckets, True) for x in (key, value))
        outputs = []
        for grids_RTHD, mask in zip(zip(queries, keys, values, strict=True), masks, strict=True):
            grids_RHTD = (grid_RTHD.transpose(1, 2) for grid_RTHD in grids_RTHD)
            outputs.append(plain_attention(module, *grids_RHTD, mask, **settings)[0])
        return _Collect.apply(buckets, *outputs)[None], None

    return attention


def _as_autocast_would(x: Tensor) -> Tensor:
    """Return the tensor in the dtype that attention would get under autocast, so that this version is copied."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(device))


class _Spread(torch.autograd.Function):
    """`[L, H, D]` packed -> a grid per bucket, with its own tokens or with all that they see.

    Autograd would write a zero for every packed token and bucket, and add them up. Here the gradient is written once;
    a prefix adds the gradients of all rows after it.
    """

    @staticmethod
    def forward(ctx: Any, x_LHD: Tensor, buckets: tuple[Bucket, ...], after_prefix: bool) -> tuple[Tensor, ...]:
        ctx.buckets, ctx.after_prefix = buckets, after_prefix
        return tuple(b.spread_after_prefix(x_LHD) if after_prefix else b.spread(x_LHD) for b in buckets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        prefixes = [bucket.prefix_length if ctx.after_prefix else 0 for bucket in ctx.buckets]
        own = [gradient[:, prefix:] for gradient, prefix in zip(gradients, prefixes, strict=True)]
        gradient_LHD = _collect(ctx.buckets, own)
        for bucket, gradient, prefix in zip(ctx.buckets, gradients, prefixes, strict=True):
            if prefix:
                gradient_LHD[bucket.prefix] += gradient[:, :prefix].sum(dim=0)
        return gradient_LHD, None, None


class _Collect(torch.autograd.Function):
    """A grid per bucket -> `[L, H, D]` packed: the reverse of `_Spread`."""

    @staticmethod
    def forward(ctx: Any, buckets: tuple[Bucket, ...], *grids: Tensor) -> Tensor:
        ctx.buckets = buckets
        return _collect(buckets, grids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LHD: Tensor) -> tuple[None, *tuple[Tensor, ...]]:
        return None, *(bucket.spread(gradient_LHD) for bucket in ctx.buckets)


def _collect(buckets: tuple[Bucket, ...], grids: Sequence[Tensor]) -> Tensor:
    x_LHD = grids[0].new_empty(buckets[-1].stop, *grids[0].shape[2:])
    for bucket, grid in zip(buckets, grids, strict=True):
        x_LHD[bucket.start : bucket.stop] = bucket.collect(grid)
    return x_LHD


def _tokens_first(x_1HLD: Tensor) -> Tensor:
    """Convert `[1, H, L, D]` to `[L, H, D]`."""
    return x_1HLD.squeeze(0).transpose(0, 1)


def _sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any
) -> tuple[Tensor, Any]:
    accelerated = acceleration().grid_attention(module, query, key, value, mask, settings)
    if accelerated is not None:
        return accelerated, None
    return sdpa_attention_forward(module, query, key, value, mask, **settings)


def _eager_attention(module: nn.Module, *args: Any, **settings: Any) -> tuple[Tensor, Any]:
    """Call the eager function of the file that defines the layer, as transformers itself would choose it."""
    for kind in type(module).__mro__:
        function = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if function is not None:
            return function(module, *args, **settings)
    raise NotImplementedError(f"{type(module).__name__} has no eager attention function in its file")


_ATTENTION = {"packed_sdpa": _packed_attention(_sdpa), "packed_eager": _packed_attention(_eager_attention)}
for _name, _function in _ATTENTION.items():
    AttentionInterface.register(_name, _function)
AttentionMaskInterface.register("packed_sdpa", _packed_mask(sdpa_mask))
AttentionMaskInterface.register("packed_eager", _packed_mask(eager_mask))


def stay_uncompiled() -> None:
    """Exclude packed attention from torch.compile, which would compile each packing separately."""
    for name, function in _ATTENTION.items():
        AttentionInterface.register(name, torch.compiler.disable(function))
