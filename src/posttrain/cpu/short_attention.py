"""Attention of short rows on a CPU by plain matrix products.

PyTorch's fused kernel for CPUs is made for long rows: its backward pass uses neither the processor's bfloat16 products
nor oneDNN's float32 ones as they could be, and on rows of a few hundred tokens takes two to four times as long as the
products themselves. Scores and softmax are float32 or wider here as there.

R rows of a grid, H heads, K heads of keys and values, G = H / K, T queries, S keys, D width of queries and keys in a
head, E that of values: another one where latent attention keeps positions in a part of its keys (arXiv:2405.04434).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.functional.linear_logprobs import chunks_of
from posttrain.models.footprint import SHORT_KEYS, SLAB_NUMBERS


def grid_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Mapping[str, Any]
) -> Tensor | None:
    """See `Acceleration`: `[R, H, T, D]`, `[R, K, S, D]`, `[R, K, S, E]` -> `[R, T, H, E]`."""
    seen_TS = _seen(module, query, key, mask, settings) if _pays(query, key, value) else None
    if seen_TS is None:
        return None
    scale = settings.get("scaling") or query.shape[-1] ** -0.5
    with torch.autocast("cpu", enabled=False):
        return _Attention.apply(query, key, value, seen_TS, scale).transpose(1, 2)


def _pays(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Where matrix products are fast: in bfloat16, and in float32 while they go through oneDNN."""
    if query.device.type != "cpu" or key.shape[2] > SHORT_KEYS or not query.dtype == key.dtype == value.dtype:
        return False
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    through_onednn = query.dtype == torch.float32 and precision == "bf16"
    return query.dtype == torch.bfloat16 or through_onednn


def _seen(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, settings: Mapping[str, Any]
) -> Tensor | None:
    """`[T, S]` which keys each query sees; None where that is not all there is to this attention."""
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


class _Attention(torch.autograd.Function):
    """A few rows at a time, so that the scores stay in the caches. Keeps the probabilities for the backward pass."""

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
    """As many rows at a time as have `SLAB_NUMBERS` scores, at least one."""
    return chunks_of(len(scores_RHTS), max(1, SLAB_NUMBERS // max(1, scores_RHTS[0].numel())))


def _by_head(x_rHTD: Tensor, kv_heads: int) -> Tensor:
    """`[r, H, T, D]` -> `[b, t, D]`, b = r x K and t = G x T: queries of heads that share keys stand together."""
    rows, _, _, width = x_rHTD.shape
    return x_rHTD.reshape(rows * kv_heads, -1, width)
