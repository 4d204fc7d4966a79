"""Attention of short rows on a CPU by plain matrix products.

PyTorch's fused kernel for CPUs is made for long rows: its backward pass uses neither the processor's bfloat16 products
nor oneDNN's float32 ones as they could be, and on rows of a few hundred tokens takes two to four times as long as the
products themselves. Scores and softmax are float32 or wider here as there.

R rows of a grid, H heads, K heads of keys and values, G = H / K, T queries, S keys, D width of queries and keys in a
head, E that of values: another one where latent attention keeps positions in a part of its keys (arXiv:2405.04434).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.integrations.sdpa_attention import sdpa_attention_forward

MOST_KEYS = 512
"""Up to here the scores of a row stay in the processor's caches; beyond, the fused kernel is the faster one."""


def sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """What transformers' function for SDPA gives: `[R, H, T, D]`, `[R, K, S, D]`, `[R, K, S, E]` -> `[R, T, H, E]`."""
    seen_TS = _seen(module, query, key, attention_mask, settings) if _pays(query, key, value) else None
    if seen_TS is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    scale = settings.get("scaling") or query.shape[-1] ** -0.5
    with torch.autocast("cpu", enabled=False):
        return _Attention.apply(query, key, value, seen_TS, scale).transpose(1, 2), None


def _pays(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Where matrix products are fast: in bfloat16, and in float32 while they go through oneDNN."""
    if query.device.type != "cpu" or key.shape[2] > MOST_KEYS or not query.dtype == key.dtype == value.dtype:
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
    """Row by row, so that the scores stay in the caches. Keeps the probabilities for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q_RHTD: Tensor, k_RKSD: Tensor, v_RKSE: Tensor, seen_TS: Tensor, scale: float) -> Tensor:
        rows, heads, queries, width = q_RHTD.shape
        kv_heads, keys = k_RKSD.shape[1:3]
        hidden_TS, wide = ~seen_TS, torch.promote_types(q_RHTD.dtype, torch.float32)
        p_RHTS = q_RHTD.new_empty(rows, heads, queries, keys)
        out_RHTE = q_RHTD.new_empty(rows, queries, heads, v_RKSE.shape[-1]).transpose(1, 2)
        for q_HTD, k_KSD, v_KSE, p_HTS, out_HTE in zip(q_RHTD, k_RKSD, v_RKSE, p_RHTS, out_RHTE, strict=True):
            q_KtD = (q_HTD.to(wide) * scale).reshape(kv_heads, -1, width)  # t = G x T: heads that share keys and values
            scores_HTS = torch.bmm(q_KtD, k_KSD.to(wide).transpose(1, 2)).view(p_HTS.shape)
            p_HTS.copy_(scores_HTS.masked_fill_(hidden_TS, -torch.inf).softmax(dim=-1))
            out_HTE.copy_(torch.bmm(p_HTS.view(kv_heads, -1, keys), v_KSE).view(out_HTE.shape))
        ctx.save_for_backward(q_RHTD, k_RKSD, v_RKSE, p_RHTS)
        ctx.scale = scale
        return out_RHTE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_RHTE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """With g the gradient and s the scores: dV = p^T g, ds = p (g V^T - sum_S(p g V^T)), dQ = ds K, dK = ds^T Q."""
        q_RHTD, k_RKSD, v_RKSE, p_RHTS = ctx.saved_tensors
        dq_RHTD, dk_RKSD, dv_RKSE = (torch.empty_like(x) for x in (q_RHTD, k_RKSD, v_RKSE))
        kv_heads, keys = k_RKSD.shape[1:3]
        with torch.autocast("cpu", enabled=False):
            for row in range(len(q_RHTD)):
                g_KtE, q_KtD = (x[row].reshape(kv_heads, -1, x.shape[-1]) for x in (gradient_RHTE, q_RHTD))
                p_KtS = p_RHTS[row].view(kv_heads, -1, keys)
                dv_RKSE[row] = torch.bmm(p_KtS.transpose(1, 2), g_KtE)
                dp_KtS = torch.bmm(g_KtE, v_RKSE[row].transpose(1, 2))
                ds_KtS = torch._softmax_backward_data(dp_KtS, p_KtS, -1, p_KtS.dtype)
                dq_RHTD[row] = torch.bmm(ds_KtS, k_RKSD[row]).view(q_RHTD.shape[1:]).mul_(ctx.scale)
                dk_RKSD[row] = torch.bmm(ds_KtS.transpose(1, 2), q_KtD).mul_(ctx.scale)
        return dq_RHTD, dk_RKSD, dv_RKSE, None, None
