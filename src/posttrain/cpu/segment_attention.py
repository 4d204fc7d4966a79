"""Attention of packed segments by compiled kernels, on the packed tokens themselves, without a grid or padding.

A segment is a contiguous part of one row. Segments of rows with a common beginning see that beginning in the first of
them (packing.py). The kernel computes the scores of a few queries at a time and keeps none of them: the backward pass
recomputes them from queries, keys and the logarithm of each query's sum of exponentials (arXiv:2205.14135, section
3.1). It computes in float32, and rounds once if its input is bfloat16.

L packed tokens, H query heads, K key-value heads, D width of queries and keys in a head, E that of values.

`grid_attention` computes the attention of short rows on a CPU by plain matrix products.

PyTorch's fused kernel for CPUs is made for long rows. Its backward pass makes poor use of the processor's bfloat16
products and of oneDNN's float32 products: for rows of a few hundred tokens it takes two to four times as long as the
products themselves. Both compute scores and softmax in float32 or wider.

R rows of a grid, H heads, K heads of keys and values, G = H / K, T queries, S keys, D width of queries and keys in a
head, E width of values. E differs from D in latent attention, which keeps positions in a part of its keys
(arXiv:2405.04434).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.cpu.kernel_formulas import Families
from posttrain.cpu.kernels import LANES, Kernels, can_compute, in_training
from posttrain.functional.linear_logprobs import chunks_of
from posttrain.models.acceleration import RowAttention, attends_alone
from posttrain.models.footprint import SHORT_KEYS, SLAB_NUMBERS
from posttrain.models.packing import Segment


def grid_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Mapping[str, Any]
) -> Tensor | None:
    """See `Acceleration`: `[R, H, T, D]`, `[R, K, S, D]`, `[R, K, S, E]` -> `[R, T, H, E]`."""
    seen_TS = _seen(module, query, key, mask, settings) if _pays(query, key, value) else None
    if seen_TS is None:
        return None
    scale = settings.get("scaling") or query.shape[-1] ** -0.5
    with torch.autocast("cpu", enabled=False):
        return _ShortAttention.apply(query, key, value, seen_TS, scale).transpose(1, 2)


def _pays(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether matrix products are fast here: in bfloat16, and in float32 while they go through oneDNN."""
    if query.device.type != "cpu" or key.shape[2] > SHORT_KEYS or not query.dtype == key.dtype == value.dtype:
        return False
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    through_onednn = query.dtype == torch.float32 and precision == "bf16"
    return query.dtype == torch.bfloat16 or through_onednn


def _seen(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, settings: Mapping[str, Any]
) -> Tensor | None:
    """Which keys each query sees, `[T, S]`; None if this attention has other features, too."""
    if settings.get("dropout") or any(settings.get(name) is not None for name in ("softcap", "position_bias", "cache")):
        return None
    if mask is not None:
        return mask[0, 0] if mask.dtype == torch.bool and mask.shape[:2] == (1, 1) else None
    queries, keys, causal = query.shape[2], key.shape[2], settings.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    all_seen_TS = torch.ones(queries, keys, dtype=torch.bool)
    if queries == 1:
        return all_seen_TS
    return all_seen_TS.tril() if causal and queries == keys else None


class _ShortAttention(torch.autograd.Function):
    """Attention of a few rows at a time, so that the scores stay in the caches. Keeps the probabilities for the
    backward pass."""

    @staticmethod
    def forward(ctx: Any, q_RHTD: Tensor, k_RKSD: Tensor, v_RKSE: Tensor, seen_TS: Tensor, scale: float) -> Tensor:
        rows, heads, queries, _ = q_RHTD.shape
        kv_heads, keys, width = v_RKSE.shape[1:]
        wide = torch.promote_types(q_RHTD.dtype, torch.float32)
        bias_TS = torch.zeros(seen_TS.shape, dtype=wide).masked_fill_(~seen_TS, -torch.inf)
        p_RHTS = q_RHTD.new_empty(rows, heads, queries, keys)
        out_RHTE = q_RHTD.new_empty(rows, queries, heads, width).transpose(1, 2)
        for part in _slabs(p_RHTS):
            q_btD, k_bSD, v_bSE = (_by_head(x[part], kv_heads) for x in (q_RHTD, k_RKSD, v_RKSE))
            scores_btS = torch.bmm(q_btD.to(wide) * scale, k_bSD.to(wide).transpose(1, 2))
            scores_rHTS = scores_btS.view(-1, heads, queries, keys).add_(bias_TS)
            if scores_rHTS.dtype == p_RHTS.dtype:
                torch.softmax(scores_rHTS, dim=-1, out=p_RHTS[part])
            else:
                p_RHTS[part] = scores_rHTS.softmax(dim=-1)
            out_RHTE[part] = torch.bmm(_by_head(p_RHTS[part], kv_heads), v_bSE).view(-1, heads, queries, width)
        ctx.save_for_backward(q_RHTD, k_RKSD, v_RKSE, p_RHTS)
        ctx.scale = scale
        return out_RHTE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_RHTE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """With g the gradient and s the scores: dV = p^T g, ds = p (g V^T - sum_S(p g V^T)), dQ = ds K, dK = ds^T Q."""
        q_RHTD, k_RKSD, v_RKSE, p_RHTS = ctx.saved_tensors
        dq_RHTD, dk_RKSD, dv_RKSE = (torch.empty_like(x) for x in (q_RHTD, k_RKSD, v_RKSE))
        kv_heads = k_RKSD.shape[1]
        with torch.autocast("cpu", enabled=False):
            for part in _slabs(p_RHTS):
                g_btE, q_btD, k_bSD, v_bSE, p_btS = (
                    _by_head(x[part], kv_heads) for x in (gradient_RHTE, q_RHTD, k_RKSD, v_RKSE, p_RHTS)
                )
                dv_RKSE[part] = torch.bmm(p_btS.transpose(1, 2), g_btE).view(dv_RKSE[part].shape)
                dp_btS = torch.bmm(g_btE, v_bSE.transpose(1, 2))
                ds_btS = torch._softmax_backward_data(dp_btS, p_btS, -1, p_btS.dtype)
                dq_rHTD, dk_rKSD = dq_RHTD[part], dk_RKSD[part]
                torch.mul(torch.bmm(ds_btS, k_bSD).view(dq_rHTD.shape), ctx.scale, out=dq_rHTD)
                torch.mul(torch.bmm(ds_btS.transpose(1, 2), q_btD).view(dk_rKSD.shape), ctx.scale, out=dk_rKSD)
        return dq_RHTD, dk_RKSD, dv_RKSE, None, None


def _slabs(scores_RHTS: Tensor) -> Iterator[slice]:
    """Split the rows into parts of at most `SLAB_NUMBERS` scores, but at least one row."""
    return chunks_of(len(scores_RHTS), max(1, SLAB_NUMBERS // max(1, scores_RHTS[0].numel())))


def _by_head(x_rHTD: Tensor, kv_heads: int) -> Tensor:
    """Reshape `[r, H, T, D]` to `[b, t, D]` with b = r x K and t = G x T: heads that share keys become one matrix."""
    rows, _, _, width = x_rHTD.shape
    return x_rHTD.reshape(rows * kv_heads, -1, width)


MOST_KEYS = 4096
"""Largest number of keys of a row. The kernel was measured up to it: it is faster than PyTorch's fused attention at
every length."""


def families(segments: Iterable[Segment]) -> Families | None:
    """The segments in the order of the kernel: those with a common beginning follow each other.

    None if a row is too long for the kernel, or if segments share different lengths of one beginning.
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


def row_attention(segments: Sequence[Segment], device: torch.device) -> RowAttention | None:
    """See `Acceleration`. It uses the kernels of training; None if there are none."""
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
    """Causal attention within segments, `[L, H, E]`; None if it has other features, or if no kernel supports it."""
    tensors = (query_LHD, key_LKD, value_LKE)
    if not attends_alone(module, settings) or not can_compute(query_LHD.device, query_LHD.dtype):
        return None
    if len({x.dtype for x in tensors}) > 1 or any(x.shape[-1] % LANES for x in tensors):
        return None
    if query_LHD.shape[1] % key_LKD.shape[1]:
        return None
    if query_LHD.shape[2] != key_LKD.shape[2] or key_LKD.shape[1] != value_LKE.shape[1]:
        return None
    if any(len(x) != of.tokens for x in tensors):  # there are additional keys from a cache
        return None
    if not keeps_busy(of, key_LKD.shape[1]):
        return None
    scaling = settings.get("scaling")
    return _Attention.apply(*tensors, of, kernels, query_LHD.shape[-1] ** -0.5 if scaling is None else scaling)


def keeps_busy(of: Families, num_keys: int) -> bool:
    """Whether there is enough work for all threads. A thread takes one key head of a family at a time."""
    return 2 * of.number * num_keys >= torch.get_num_threads()


def _trunk(segment: Segment) -> int:
    return segment.prefix_start if segment.prefix_length else segment.start


class _Attention(torch.autograd.Function):
    """Segment attention with gradient. Keeps queries, keys, values and one number for each query and head."""

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
