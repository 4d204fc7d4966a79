"""Attention over packed rows with a kernel for sequences of different lengths: no grid, no padding, no mask.

Each segment of a packing (models/packing.py) is a sequence for the kernel. Its queries are the segment's own tokens.
Its keys are the prefix that the segment shares with the trunk of its family, followed by its own tokens. So there are
at least as many keys as queries, and the causal mask is aligned at the end: the last query sees every key. The keys of
a prefix are gathered once for each segment that sees them, and their gradients are summed in float32.

The kernel is `torch.nn.attention.varlen.varlen_attn`, which calls FlashAttention (arXiv:2307.08691). It computes in
bfloat16 and float16. The first run of a model tries whether it works here (models/forward_path.py). If it does not, or
if attention is not plain causal attention, grids are computed as on other devices.

L packed tokens, M gathered keys, S segments, H query heads, K key-value heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.models.acceleration import RowAttention, attends_alone
from posttrain.models.packing import Segment
from posttrain.models.transfer import to_device

Kernel = Callable[..., Tensor]
"""A function with the signature of `varlen_attn`: queries `[L, H, D]`, keys and values `[M, K, D]`, the boundaries of
the sequences in both (`[S + 1]`, int32) and the longest of both; by name the scale, the window and whether heads are
grouped."""
DTYPES = (torch.bfloat16, torch.float16)
WIDEST, WIDTH_STEP = 256, 8
"""Head dimensions that FlashAttention supports: up to the first number, in multiples of the second."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """A packing in the form that the kernel reads. All tensors are on the device of the model."""

    query_ends: Tensor
    """`[S + 1]` boundaries of the segments: where each begins, and where the last one ends."""
    key_ends: Tensor
    """`[S + 1]` boundaries of the segments among the gathered keys."""
    most_queries: int
    most_keys: int
    gathered_M: Tensor | None
    """Packed position of each key; None if no segment has a prefix, so that the keys are the packed tokens."""
    tokens: int

    @staticmethod
    def of(segments: Sequence[Segment], device: torch.device) -> Sequences:
        lengths = [segment.length for segment in segments]
        seen = [segment.prefix_length + segment.length for segment in segments]
        shares = any(segment.prefix_length for segment in segments)
        return Sequences(
            query_ends=_ends(lengths, device),
            key_ends=_ends(seen, device),
            most_queries=max(lengths, default=0),
            most_keys=max(seen, default=0),
            gathered_M=to_device(_places(segments), device) if shares else None,
            tokens=sum(lengths),
        )


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    return to_device(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)


def _places(segments: Sequence[Segment]) -> Tensor:
    """Return the packed position of each key (`[M]`), segment by segment, the prefix first."""
    parts = []
    for start, length, prefix_start, prefix_length in segments:
        parts += [torch.arange(prefix_start, prefix_start + prefix_length), torch.arange(start, start + length)]
    return torch.cat(parts)


def row_attention(segments: Sequence[Segment], device: torch.device) -> RowAttention:
    """Return the attention function for these segments; see `Acceleration`."""
    return partial(attend, Sequences.of(segments, device), _varlen_attn)


def attend(
    sequences: Sequences,
    kernel: Kernel,
    module: nn.Module,
    query_LHD: Tensor,
    key_LKD: Tensor,
    value_LKD: Tensor,
    settings: Mapping[str, Any],
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> Tensor | None:
    """Return causal attention within segments (`[L, H, D]`); None if the attention or its sizes are not supported."""
    if not attends_alone(module, settings) or settings.get("sliding_window") is not None:
        return None
    heads, width = query_LHD.shape[1:]
    if key_LKD.shape != value_LKD.shape or key_LKD.shape[2] != width or heads % key_LKD.shape[1]:
        return None
    if width > WIDEST or width % WIDTH_STEP or any(len(x) != sequences.tokens for x in (query_LHD, key_LKD)):
        return None
    if query_LHD.dtype not in dtypes or not query_LHD.dtype == key_LKD.dtype == value_LKD.dtype:
        return None
    key_MKD, value_MKD = key_LKD, value_LKD
    if sequences.gathered_M is not None:
        key_MKD, value_MKD = (_Gather.apply(x, sequences.gathered_M) for x in (key_LKD, value_LKD))
    return kernel(
        query_LHD.contiguous(),
        key_MKD.contiguous(),
        value_MKD.contiguous(),
        sequences.query_ends,
        sequences.key_ends,
        sequences.most_queries,
        sequences.most_keys,
        scale=settings.get("scaling"),
        window_size=(-1, 0),  # all keys before the query, none after it
        enable_gqa=heads != key_LKD.shape[1],
    )


def _varlen_attn(*args: Any, **settings: Any) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(*args, **settings)  # pyright: ignore[reportReturnType]


class _Gather(torch.autograd.Function):
    """Gathers `[L, K, D]` to `[M, K, D]`, where a packed token may occur several times.

    The gradient of a token is the sum over its copies, in float32: one small number for each completion of a prompt.
    """

    @staticmethod
    def forward(ctx: Any, x_LKD: Tensor, place_M: Tensor) -> Tensor:
        ctx.save_for_backward(place_M)
        ctx.shape = x_LKD.shape
        return x_LKD.index_select(0, place_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_MKD: Tensor) -> tuple[Tensor, None]:
        (place_M,) = ctx.saved_tensors
        wide = torch.promote_types(gradient_MKD.dtype, torch.float32)
        sum_LKD = gradient_MKD.new_zeros(ctx.shape, dtype=wide)
        return sum_LKD.index_add_(0, place_M, gradient_MKD.to(wide)).to(gradient_MKD.dtype), None
