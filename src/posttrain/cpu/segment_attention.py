"""Attention of packed segments by compiled kernels: on the packed tokens themselves, with no grid and no padding.

A segment is a stretch of one row; those that begin alike see what they have in common within the first of them
(packing.py). The kernel computes scores a few queries at a time and keeps none of them: the backward pass makes them
again from queries, keys and the logarithm of each query's sum of exponentials (arXiv:2205.14135, section 3.1). It
computes in float32 and rounds once where its input is bfloat16.

L packed tokens, H query heads, K key-value heads, D width of queries and keys in a head, E that of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.cpu.kernels import LANES, Kernels, can_compute, in_training
from posttrain.cpu.layouts import Families
from posttrain.models.acceleration import RowAttention
from posttrain.models.packing import Segment

MOST_KEYS = 4096
"""Of a row, up to which the kernel was measured: it is faster than PyTorch's fused attention at every length."""


def families(segments: Iterable[Segment]) -> Families | None:
    """The segments for the kernel, those that begin alike together.

    None where a row is too long for it, or where segments see different lengths of one beginning.
    """
    ordered = sorted(segments, key=lambda segment: (_trunk(segment), segment.prefix_length > 0, segment.start))
    if max((segment.prefix_length + segment.length for segment in ordered), default=0) > MOST_KEYS:
        return None
    prefixes = {segment[2:] for segment in ordered if segment.prefix_length}
    if len({start for start, _ in prefixes}) < len(prefixes):
        return None
    sizes = [len([*family]) for _, family in groupby(ordered, key=_trunk)]
    return Families(
        segments=torch.tensor([(s.start, s.length, s.prefix_length) for s in ordered], dtype=torch.long).view(-1, 3),
        starts=torch.tensor([0, *sizes]).cumsum(dim=0),
    )


def row_attention(segments: Sequence[Segment]) -> RowAttention | None:
    """See `Acceleration`: by the kernels of training, where there are some."""
    kernels, of = in_training(), families(segments)
    return None if kernels is None or of is None else partial(segment_attention, kernels, of)


def segment_attention(
    kernels: Kernels,
    of: Families,
    module: nn.Module,
    query_LHD: Tensor,
    key_LKD: Tensor,
    value_LKE: Tensor,
    settings: Mapping[str, Any],
) -> Tensor | None:
    """`[L, H, E]`, of causal attention within segments; None where there is more to it, or no kernel for it."""
    tensors = (query_LHD, key_LKD, value_LKE)
    if not attends_alone(module, settings) or not can_compute(query_LHD.device, query_LHD.dtype):
        return None
    if len({x.dtype for x in tensors}) > 1 or any(x.shape[-1] % LANES for x in tensors):
        return None
    if query_LHD.shape[1] % key_LKD.shape[1]:
        return None
    if query_LHD.shape[2] != key_LKD.shape[2] or key_LKD.shape[1] != value_LKE.shape[1]:
        return None
    if any(len(x) != of.tokens for x in tensors):  # keys of a cache beside them
        return None
    if not keeps_busy(of, key_LKD.shape[1]):
        return None
    scaling = settings.get("scaling")
    return _Attention.apply(*tensors, of, kernels, query_LHD.shape[-1] ** -0.5 if scaling is None else scaling)


def attends_alone(module: nn.Module, settings: Mapping[str, Any]) -> bool:
    """Whether attention with these settings is causal and nothing else: no dropout, soft cap, bias or sinks."""
    if settings.get("dropout") or any(
        settings.get(name) is not None for name in ("softcap", "position_bias", "s_aux", "cache")
    ):
        return False
    causal = settings.get("is_causal")
    return bool(getattr(module, "is_causal", True) if causal is None else causal)


def keeps_busy(of: Families, num_keys: int) -> bool:
    """A thread takes a key head of a family: with few of them most threads would have nothing to do."""
    return 2 * of.number * num_keys >= torch.get_num_threads()


def _trunk(segment: Segment) -> int:
    return segment.prefix_start if segment.prefix_length else segment.start


class _Attention(torch.autograd.Function):
    """Keeps queries, keys, values and one number of each query."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, of: Families, kernels: Kernels, scaling: float
    ) -> Tensor:
        tensors = query.contiguous(), key.contiguous(), value.contiguous()
        out_LHE, logsums_LH = kernels.attend_segments(*tensors, of, scaling)
        ctx.save_for_backward(*tensors, logsums_LH)
        ctx.of, ctx.kernels, ctx.scaling = of, kernels, scaling
        return out_LHE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LHE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        kernels: Kernels = ctx.kernels
        query, key, value, logsums_LH = ctx.saved_tensors
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        given = query, key, value
        kernels.attend_segments_backward(gradient_LHE, given, found, logsums_LH, ctx.of, ctx.scaling)
        return *found, None, None, None
