"""Attention of short packed rows on a CPU by plain matrix products.

PyTorch's fused kernel for CPUs is made for long rows: its backward pass uses neither the processor's bfloat16 products
nor oneDNN's float32 ones as they could be, and on rows of a few hundred tokens takes two to four times as long as the
products themselves. Of models with narrow heads the calls cost as much as what they compute, so there are few: queries,
keys and values are laid out by head once for a layer, and a slab of rows takes its own by one call, prefix included.
Scores and softmax are float32 or wider here as there.

L packed tokens, r rows of a slab, H heads, K heads of keys and values, G = H / K, T queries, S keys, D width of queries
and keys in a head, E that of values: another one where latent attention keeps positions in a part of its keys
(arXiv:2405.04434).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.functional.linear_logprobs import chunks_of
from posttrain.models.packing import Bucket

MOST_KEYS = 512
"""Up to here the scores of a row stay in the processor's caches; beyond, the fused kernel is the faster one."""
SLAB_NUMBERS = 2**18
"""Scores of the rows that are computed together: 1 MB. Of short rows, one at a time, calls are most of the cost."""


@dataclass(frozen=True, kw_only=True)
class Slab:
    """Rows of one bucket that are computed together."""

    rows: int
    prefix: slice
    """Packed tokens that all of its rows see before their own."""
    own_q: Tensor
    """`[r T]` packed place of each query; L, behind the last token, for padding."""
    seen_k: Tensor
    """`[r S]` packed place of each key, those of the prefix first."""
    bias_qS: Tensor
    """`[T G, S]`: 0 where a query looks, -inf elsewhere."""


def pays(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Where the fused kernel is that of a CPU, in the precisions that models are trained in."""
    dtypes = {query.dtype, key.dtype, value.dtype}
    return query.device.type == "cpu" and len(dtypes) == 1 and dtypes < {torch.float32, torch.bfloat16}


def seen(module: nn.Module, bucket: Bucket, mask: Tensor | None, settings: Mapping[str, Any]) -> Tensor | None:
    """`[T, S]` which keys each query of a bucket sees; None where it is too long, or this is not all there is to it."""
    queries, keys = bucket.longest, bucket.prefix_length + bucket.longest
    if keys > MOST_KEYS or settings.get("dropout"):
        return None
    if any(settings.get(name) is not None for name in ("softcap", "position_bias", "cache")):
        return None
    if mask is not None:
        return mask[0, 0] if mask.dtype == torch.bool and mask.shape[:2] == (1, 1) else None
    causal = settings.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if queries == 1 or (causal and queries == keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return None


def slabs(bucket: Bucket, seen_TS: Tensor, heads: int, kv_heads: int, *, nowhere: int) -> Iterator[Slab]:
    """As many rows at a time as have `SLAB_NUMBERS` scores, at least one. `nowhere`: L."""
    bias_TS = torch.zeros(seen_TS.shape).masked_fill_(~seen_TS, -torch.inf)
    bias_qS = bias_TS.repeat_interleave(heads // kv_heads, dim=0)
    own_RT = bucket.places(nowhere)
    prefix_P = torch.arange(bucket.prefix.start, bucket.prefix.stop)
    for part in chunks_of(bucket.rows, max(1, SLAB_NUMBERS // max(1, heads * seen_TS.numel()))):
        own_rT = own_RT[part]
        yield Slab(
            rows=len(own_rT),
            prefix=bucket.prefix,
            own_q=own_rT.flatten(),
            seen_k=torch.cat([prefix_P.expand(len(own_rT), -1), own_rT], dim=1).flatten(),
            bias_qS=bias_qS,
        )


def attend(q_LHD: Tensor, k_LKD: Tensor, v_LKE: Tensor, parts: Sequence[Slab], scale: float) -> Tensor:
    """`[L, H, E]`, zeros for tokens that are in no slab."""
    with torch.autocast("cpu", enabled=False):
        return _Attention.apply(q_LHD, k_LKD, v_LKE, parts, scale)


class _Attention(torch.autograd.Function):
    """Keeps queries, keys and values by head and the probabilities for the backward pass.

    l: by head, tokens stand `[K, L + 1, .]`. The last place is that of padding: zeros where it is read, and what is
    written there is dropped.
    """

    @staticmethod
    def forward(ctx: Any, q_LHD: Tensor, k_LKD: Tensor, v_LKE: Tensor, parts: Sequence[Slab], scale: float) -> Tensor:
        kv_heads, wide = k_LKD.shape[1], torch.promote_types(q_LHD.dtype, torch.float32)
        q_1Kl, kv = _by_head([q_LHD], kv_heads), _keys_and_values(k_LKD, v_LKE)
        tokens, heads, width = len(q_LHD), q_LHD.shape[1], v_LKE.shape[2]
        out_Kl = q_LHD.new_zeros(kv_heads, tokens + 1, heads // kv_heads * width)
        probabilities: list[Tensor] = []
        for slab in parts:
            (q_bqD,) = _rows(q_1Kl, slab.own_q, slab.rows, k_LKD.shape[2])
            k_bSD, v_bSE = _pairs(kv, slab)
            scores_bqS = torch.bmm(q_bqD.to(wide) * scale, k_bSD.to(wide).transpose(1, 2)).add_(slab.bias_qS)
            p_bqS = scores_bqS.softmax(dim=-1).to(q_LHD.dtype)
            probabilities.append(p_bqS)
            out_Kl.index_copy_(1, slab.own_q, torch.bmm(p_bqS, v_bSE).view(kv_heads, len(slab.own_q), -1))
        ctx.save_for_backward(q_1Kl, *kv, *probabilities)
        ctx.parts, ctx.scale, ctx.num_stacks = parts, scale, len(kv)
        return _by_token(out_Kl, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LHE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """With g the gradient and s the scores: dV = p^T g, ds = p (g V^T - sum_S(p g V^T)), dQ = ds K, dK = ds^T Q."""
        q_1Kl, *saved = ctx.saved_tensors
        kv, probabilities = saved[: ctx.num_stacks], saved[ctx.num_stacks :]
        kv_heads, key_width, width = q_1Kl.shape[1], kv[0].shape[3], gradient_LHE.shape[2]
        g_1Kl = _by_head([gradient_LHE], kv_heads)
        dq_Kl, dkv = torch.zeros_like(q_1Kl[0]), [torch.zeros_like(stack) for stack in kv]
        with torch.autocast("cpu", enabled=False):
            for slab, p_bqS in zip(ctx.parts, probabilities, strict=True):
                (g_bqE,) = _rows(g_1Kl, slab.own_q, slab.rows, width)
                (q_bqD,) = _rows(q_1Kl, slab.own_q, slab.rows, key_width)
                k_bSD, v_bSE = _pairs(kv, slab)
                slab_dkv = [stack.new_empty(len(stack), *k_bSD.shape[:2], stack.shape[3]) for stack in kv]
                dk_bSD, dv_bSE = (x for stack in slab_dkv for x in stack)
                torch.bmm(p_bqS.transpose(1, 2), g_bqE, out=dv_bSE)
                dp_bqS = torch.bmm(g_bqE, v_bSE.transpose(1, 2))
                ds_bqS = torch._softmax_backward_data(dp_bqS, p_bqS, -1, p_bqS.dtype)
                dq_Kl.index_copy_(1, slab.own_q, torch.bmm(ds_bqS, k_bSD).view(kv_heads, len(slab.own_q), -1))
                torch.bmm(ds_bqS.transpose(1, 2), q_bqD, out=dk_bSD)
                for total, part in zip(dkv, slab_dkv, strict=True):
                    _add_rows(total, part, slab)
        dk_Kl, dv_Kl = (x for stack in dkv for x in stack)
        dq_LHD, dk_LKD = _by_token(dq_Kl, gradient_LHE.shape[1]), _by_token(dk_Kl, kv_heads)
        return dq_LHD * ctx.scale, dk_LKD * ctx.scale, _by_token(dv_Kl, kv_heads), None, None


def _by_head(tensors: Sequence[Tensor], kv_heads: int) -> Tensor:
    """Each `[L, H, D]` -> together `[n, K, L + 1, G D]`, zeros in the last place."""
    tokens, heads, width = tensors[0].shape
    found = tensors[0].new_empty(len(tensors), kv_heads, tokens + 1, heads // kv_heads * width)
    found[:, :, tokens] = 0
    for place, x_LHD in zip(found, tensors, strict=True):
        place[:, :tokens].unflatten(-1, (-1, width)).copy_(x_LHD.unflatten(1, (kv_heads, -1)).transpose(0, 1))
    return found


def _by_token(x_Kl: Tensor, heads: int) -> Tensor:
    """`[K, L + 1, G D]` -> `[L, H, D]`."""
    return x_Kl[:, :-1].unflatten(-1, (heads // len(x_Kl), -1)).transpose(0, 1).flatten(1, 2)


def _keys_and_values(k_LKD: Tensor, v_LKE: Tensor) -> list[Tensor]:
    """By head, in one stack where they are equally wide, so that one call finds both."""
    together = [[k_LKD, v_LKE]] if k_LKD.shape == v_LKE.shape else [[k_LKD], [v_LKE]]
    return [_by_head(tensors, k_LKD.shape[1]) for tensors in together]


def _rows(x_nKl: Tensor, places: Tensor, rows: int, width: int) -> Tensor:
    """What is at these packed places of each head, `[n, K r, ., D]`."""
    number, kv_heads = x_nKl.shape[:2]
    return x_nKl.index_select(2, places).view(number, kv_heads * rows, -1, width)


def _pairs(kv: Sequence[Tensor], slab: Slab) -> Iterator[Tensor]:
    """Keys `[K r, S, D]` and values `[K r, S, E]`."""
    for stack in kv:
        yield from _rows(stack, slab.seen_k, slab.rows, stack.shape[3])


def _add_rows(total_nKl: Tensor, part_nbS: Tensor, slab: Slab) -> None:
    """The gradient of a slab's keys or values: its own tokens have no other, a prefix sums those of all its rows.

    The trunk in which a prefix stands comes in an earlier slab than the branches behind it.
    """
    number, kv_heads = total_nKl.shape[:2]
    prefix = slab.prefix.stop - slab.prefix.start
    part = part_nbS.view(number, kv_heads, slab.rows, -1, part_nbS.shape[-1])
    if prefix:
        total_nKl[:, :, slab.prefix] += part[:, :, :, :prefix].sum(dim=2)
        part = part[:, :, :, prefix:]
    total_nKl.index_copy_(2, slab.own_q, part.reshape(number, kv_heads, len(slab.own_q), -1))
