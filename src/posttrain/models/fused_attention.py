"""Attention of packed rows, from a layer's input to what its output projection reads, as one step of autograd.

    q, k, v = one product of x with the three weights       rotated in place, in float32 whatever the precision
    out     = attention of segments                          (segment_attention.py), which reads them where they are

In operations of PyTorch that is three products, which read the same input and hand back three gradients to add up, and
a dozen passes over queries and keys to rotate them. Here one product takes 0.6 of the time of three in a small model,
and its input, the rotated numbers and one number of each query are all that is kept. With adapters, hooks or norms of
heads the projections are called as they are, and what follows is one step.

L packed tokens, E width of the model, H query heads, K key-value heads, N = H + 2 K, D width of a head.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.models.fused import Fused, are_near, as_trained, exact, fuse, holds_tensors, is_plain, kind_of, noise
from posttrain.models.kernels import LANES, Families, Kernels, Parts, can_compute, in_training
from posttrain.models.packed_attention import KERNELS_ATTEND, Overheard, RowAttention
from posttrain.models.segment_attention import attends_alone, keeps_busy

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
HEAD_NORMS = {"q_norm", "k_norm"}
_GIVEN = ["hidden_states", "position_embeddings", "attention_mask", "past_key_values"]
_OF_THE_MASK = {"sliding_window"}
"""Settings that layers hand on to attention, but that only its mask has to know."""
_TOLD = {"position_ids": torch.tensor([[3, 70_000, 11, 0, 900]]), "use_cache": False}
"""What layers tell besides, and what attention must not care for."""


def fuse_attention(module: nn.Module) -> None:
    """Let one step compute this attention, if it is one of rotated queries and keys and nothing else."""
    if is_rotary_attention(module):
        fuse(module, _RotaryAttention)


def is_rotary_attention(module: nn.Module) -> bool:
    """Whether attention is given `rotate(q(x))`, `rotate(k(x))` and `v(x)`, heads normed or not, and nothing else.

    The layer is run on small and on large numbers, told of strange positions, and as in training, and what it would
    attend with is compared.
    """
    names = {name for name, _ in module.named_children()}
    if not {*PROJECTIONS, "o_proj"} <= names <= {*PROJECTIONS, "o_proj", *HEAD_NORMS} or not is_plain(module):
        return False
    if holds_tensors(module):
        return False
    width, scaling = getattr(module, "head_dim", None), getattr(module, "scaling", None)
    if not isinstance(width, int) or width % (2 * LANES) or not isinstance(scaling, float):
        return False
    if getattr(getattr(module, "config", None), "_attn_implementation", None) != KERNELS_ATTEND:
        return False
    takes = inspect.signature(module.forward).parameters.values()
    if [p.name for p in takes if p.kind is not p.VAR_KEYWORD] != _GIVEN:
        return False
    attention: Any = exact(module)
    like = next(iter(attention.parameters()), None)
    inputs = getattr(attention.q_proj, "in_features", None)
    if like is None or not like.is_floating_point() or inputs is None:
        return False
    small, large = (noise(1, 5, inputs, like=like, size=size) for size in (1.0, 100.0))
    if not (_is_rotary_attention(attention, small, {}) and _is_rotary_attention(attention, large, _TOLD)):
        return False
    with as_trained(attention):
        return _is_rotary_attention(attention, small, _TOLD)


def _is_rotary_attention(attention: Any, x: Tensor, told: Mapping[str, Any]) -> bool:
    length, width = x.shape[1], attention.head_dim
    cos, sin = noise(2, 1, length, width, like=x, size=1.0)
    try:
        q, k, v = (part.transpose(1, 2) for part in _parts(attention, x))
        put_down = noise(1, length, q.shape[1], v.shape[3], like=x, size=1.0)
        mask = Overheard(put_down)
        named = dict(zip(_GIVEN, (x, (cos, sin), mask, None), strict=True))
        given, weights = attention.forward(**named, **told)
        expected = _rotated(q, cos, sin), _rotated(k, cos, sin), v
        out = attention.o_proj(put_down.flatten(2))
    except Exception:  # whatever an architecture makes of such an input: it is called as it is
        return False
    if weights is not None or len(mask.heard) != 1 or q.shape[1] % k.shape[1] or k.shape != v.shape:
        return False
    (heard, settings), scaling = mask.heard[0], attention.scaling
    unknown = [name for name, value in settings.items() if value is not None and name not in {*_OF_THE_MASK, *told}]
    if settings.get("scaling") != scaling or not set(unknown) <= {"scaling", "dropout", "is_causal"}:
        return False
    alone = settings | {"dropout": 0.0} if attention.training else settings  # which each step asks for by itself
    if not attends_alone(attention, alone):
        return False
    return are_near(given, out) and all(map(are_near, heard, expected))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-high, low], dim=-1) * sin[:, None]


def _parts(attention: Any, x: Tensor) -> list[Tensor]:
    """Queries, keys and values `[..., heads, D]`, those with a norm normed, none rotated."""
    found = []
    for name in PROJECTIONS:
        part = getattr(attention, name)(x).unflatten(-1, (-1, attention.head_dim))
        norm = getattr(attention, name.replace("proj", "norm"), None)
        found.append(part if norm is None else norm(part))
    return found


@dataclass(frozen=True)
class _Step:
    """What the two passes of one layer have in common."""

    kernels: Kernels
    of: Families
    cos_LD: Tensor
    sin_LD: Tensor
    scaling: float
    width: int
    dtype: torch.dtype
    """Of the products, and of what attention reads; rotation is rounded to it once."""

    def rotate_(self, x_LND: Tensor, *, back: bool = False) -> None:
        self.kernels.rotate_heads_(x_LND, self.cos_LD, self.sin_LD, back=back)


class _RotaryAttention(Fused):
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module

    def forward(self, *given: Any, **named: Any) -> Any:
        step = None if given else _step(self, **named)
        if step is None:
            return kind_of(self).forward(self, *given, **named)
        x_1LE, projections = named["hidden_states"], [getattr(self, name) for name in PROJECTIONS]
        if all(map(_is_product, projections)) and not HEAD_NORMS & self._modules.keys():
            weights, biases = [p.weight for p in projections], [p.bias for p in projections]
            out_LHD = _FromInput.apply(step, x_1LE[0], *weights, *biases)
        else:
            out_LHD = _FromParts.apply(step, *(part[0] for part in _parts(self, x_1LE)))
        return self.o_proj(out_LHD.flatten(1)[None]), None


def _step(
    attention: Any,
    hidden_states: Tensor | None = None,
    position_embeddings: Any = None,
    attention_mask: Any = None,
    past_key_values: Any = None,
    **settings: Any,
) -> _Step | None:
    """None where there is more to it than the kernels know, or none of them."""
    kernels, x = in_training(), hidden_states
    if kernels is None or x is None or past_key_values is not None or not isinstance(attention_mask, RowAttention):
        return None
    if not settings.keys() <= _TOLD.keys():
        return None  # it was not tried with them
    of, num_keys = attention_mask.cuts.families, getattr(attention.k_proj, "out_features", 0) // attention.head_dim
    if of is None or not keeps_busy(of, num_keys) or not attention_mask.is_causal:
        return None
    if attention.config._attn_implementation != KERNELS_ATTEND:
        return None
    settings["dropout"] = getattr(attention, "attention_dropout", 0.0) if attention.training else 0.0
    if x.dim() != 3 or x.shape[:2] != (1, of.tokens) or not attends_alone(attention, settings):
        return None
    cos, sin = position_embeddings
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
    if not can_compute(x.device, x.dtype, dtype, cos.dtype) or cos.dtype != sin.dtype or cos.requires_grad:
        return None
    if not cos.shape == sin.shape == (1, of.tokens, attention.head_dim):
        return None  # angles for a part of a head, or the same for all rows
    if not autocast and any(parameter.dtype != dtype for parameter in attention.parameters()):
        return None
    tables = cos[0].contiguous(), sin[0].contiguous()
    return _Step(kernels, of, *tables, attention.scaling, attention.head_dim, dtype)


def _is_product(module: nn.Module) -> bool:
    return type(module) is nn.Linear and is_plain(module)


class _FromInput(torch.autograd.Function):
    """Keeps the input, queries, keys and values as they are attended with, and a number of each query."""

    @staticmethod
    def forward(ctx: Any, step: _Step, x_LE: Tensor, *given: Tensor | None) -> Tensor:
        weights = [weight for weight in given[:3] if weight is not None]
        x_LE = x_LE.to(step.dtype)
        qkv_LM = F.linear(x_LE, _joined(weights, step.dtype), _joined_biases(weights, given[3:], step.dtype))
        ctx.heads = [len(weight) // step.width for weight in weights]
        qkv_LND = qkv_LM.unflatten(1, (-1, step.width))
        step.rotate_(qkv_LND[:, : -ctx.heads[2]])
        out_LHD, logsums_LH = step.kernels.attend_segments(*_split(qkv_LND, ctx.heads), step.of, step.scaling)
        ctx.step, ctx.kinds = step, [None if x is None else x.dtype for x in given]
        ctx.save_for_backward(x_LE, qkv_LND, logsums_LH, *weights)
        return out_LHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LHD: Tensor) -> tuple[Tensor | None, ...]:
        step: _Step = ctx.step
        x_LE, qkv_LND, logsums_LH, *weights = ctx.saved_tensors
        dqkv_LND = torch.empty_like(qkv_LND)
        found, given = _split(dqkv_LND, ctx.heads), _split(qkv_LND, ctx.heads)
        step.kernels.attend_segments_backward(gradient_LHD, given, found, logsums_LH, step.of, step.scaling)
        step.rotate_(dqkv_LND[:, : -ctx.heads[2]], back=True)
        dqkv_LM, needed = dqkv_LND.flatten(1), ctx.needs_input_grad
        dx_LE = dqkv_LM @ _joined(weights, step.dtype) if needed[1] else None
        parts: list[Tensor | None] = [None] * 6
        sizes = [len(weight) for weight in weights]
        if any(needed[2:5]):
            parts[:3] = (dqkv_LM.T @ x_LE).split(sizes)
        if any(needed[5:]):
            parts[3:] = dqkv_LM.sum(dim=0, dtype=torch.float32).split(sizes)
        kept = zip(parts, ctx.kinds, needed[2:], strict=True)
        return (
            None,
            dx_LE,
            *(part.to(kind) if part is not None and is_needed else None for part, kind, is_needed in kept),
        )


class _FromParts(torch.autograd.Function):
    """The same of queries, keys and values, which may be more exact than what attention reads."""

    @staticmethod
    def forward(ctx: Any, step: _Step, query_LHD: Tensor, key_LKD: Tensor, value_LKD: Tensor) -> Tensor:
        qk_LND = torch.cat([query_LHD, key_LKD], dim=1)
        step.rotate_(qk_LND)
        ctx.step, ctx.heads, ctx.kinds = step, [query_LHD.shape[1], key_LKD.shape[1]], (qk_LND.dtype, value_LKD.dtype)
        qk_LND, value_LKD = qk_LND.to(step.dtype), value_LKD.to(step.dtype).contiguous()
        query_LHD, key_LKD = qk_LND.split(ctx.heads, dim=1)
        out_LHD, logsums_LH = step.kernels.attend_segments(query_LHD, key_LKD, value_LKD, step.of, step.scaling)
        ctx.save_for_backward(qk_LND, value_LKD, logsums_LH)
        return out_LHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LHD: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        step: _Step = ctx.step
        qk_LND, value_LKD, logsums_LH = ctx.saved_tensors
        (query_LHD, key_LKD), dqk_LND = qk_LND.split(ctx.heads, dim=1), torch.empty_like(qk_LND)
        dquery_LHD, dkey_LKD = dqk_LND.split(ctx.heads, dim=1)
        given, found = (query_LHD, key_LKD, value_LKD), (dquery_LHD, dkey_LKD, torch.empty_like(value_LKD))
        step.kernels.attend_segments_backward(gradient_LHD, given, found, logsums_LH, step.of, step.scaling)
        dqk_LND = dqk_LND.to(ctx.kinds[0])
        step.rotate_(dqk_LND, back=True)
        dquery_LHD, dkey_LKD = dqk_LND.split(ctx.heads, dim=1)
        return None, dquery_LHD, dkey_LKD, found[2].to(ctx.kinds[1])


def _split(qkv_LND: Tensor, heads: list[int]) -> Parts:
    query_LHD, key_LKD, value_LKD = qkv_LND.split(heads, dim=1)
    return query_LHD, key_LKD, value_LKD


def _joined(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """One below the other; made anew for the backward pass, so that no copy is kept."""
    return torch.cat([weight.to(dtype) for weight in weights])


def _joined_biases(weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor | None:
    """Zeros for a projection that has none; None where none has one."""
    if all(bias is None for bias in biases):
        return None
    pairs = zip(weights, biases, strict=True)
    return torch.cat(
        [weight.new_zeros(len(weight), dtype=dtype) if bias is None else bias.to(dtype) for weight, bias in pairs]
    )
