"""RMSNorm and the gate of an MLP as one kernel each in training: fewer passes over memory, and less kept of them.

In operations of PyTorch, as transformers has them, a norm keeps its input, the normed input and, under autocast, a copy
of the result for each product that reads it; here its input, one number of each row and one copy. A gate keeps
`silu(gate)` besides gate and up; here those two alone. How modules are replaced is said in fused.py; attention has a
file of its own (fused_attention.py).

L tokens, E width of the model, I of the MLP.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

from posttrain.models.fused import Fused, are_near, as_trained, exact, fuse, holds_tensors, is_plain, kind_of, noise
from posttrain.models.fused_attention import HEAD_NORMS, PROJECTIONS, fuse_attention
from posttrain.models.kernels import LANES, Kernels, can_compute, in_training

SILU = (nn.SiLU, SiLUActivation)
_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ATTENTION = {*PROJECTIONS, "o_proj", *HEAD_NORMS}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


def fuse_layers(body: nn.Module, run: Callable[[], Tensor] | None = None) -> None:
    """Let kernels compute norms, gates and attention of this model where they are nothing else; for training alone.

    `run` gives hidden states of the model for some tokens. Norms round their result under autocast once for all that
    read it, in place of each by itself, where those stay the same bits by that; without `run` none does.
    """
    if next(body.parameters()).device.type != "cpu":
        return
    for module in body.modules():
        if isinstance(module, Fused):
            continue
        if is_rms_norm(module):
            fuse(module, _Norm)
        elif is_gated_mlp(module):
            fuse(module, _GatedMLP)
        else:
            fuse_attention(module)
    for layer in body.modules():
        parts = dict(layer.named_children())
        if parts.keys() == _LAYER:
            for norm, reader in (("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp")):
                if isinstance(found := parts[norm], _Norm) and _reads_by_products(parts[reader]):
                    found.reader = (parts[reader],)
    norms = [module for module in body.modules() if isinstance(module, _Norm) and module.reader]
    if norms and (run is None or not _may_round(norms, run)):
        for norm in norms:
            norm.reader = ()


def is_rms_norm(module: nn.Module) -> bool:
    """Whether this is `x / sqrt(mean(x^2) + epsilon) * weight` and nothing else, for small and large numbers."""
    weight, epsilon = getattr(module, "weight", None), _epsilon(module)
    if epsilon is None or not isinstance(weight, Tensor) or weight.dim() != 1 or len(weight) % LANES:
        return False
    if [*module.children()] or len([*module.parameters()]) != 1 or not weight.any() or not is_plain(module):
        return False
    norm = exact(module)
    return all(_is_rms_norm(norm, epsilon, size) for size in (max(epsilon, 0) ** 0.5, 1.0, 10.0, 1000.0))


def _is_rms_norm(module: Any, epsilon: float, size: float) -> bool:
    """For numbers of about this size; at the root of epsilon it counts as much as they do."""
    weight: Tensor = module.weight
    x = noise(3, len(weight), like=weight, size=size)
    exact = x.float()
    expected = exact * (exact.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt() * weight.float()
    return size == 0 or _gives(module, x, lambda: expected)


def is_gated_mlp(module: nn.Module) -> bool:
    """Whether this is `down(silu(gate(x)) * up(x))` and nothing else, for small and large numbers."""
    mlp: Any = module
    if {name for name, _ in module.named_children()} != _PARTS or not _is_silu(mlp.act_fn) or not is_plain(module):
        return False
    if holds_tensors(module):
        return False
    mlp = exact(module)
    width, like = getattr(mlp.gate_proj, "in_features", None), next(iter(mlp.parameters()), None)
    if width is None or like is None or not like.is_floating_point():
        return False
    x = noise(1, 3, width, like=like)
    if not (_is_gated_mlp(mlp, x, 1.0) and _is_gated_mlp(mlp, x, 100.0)):
        return False
    with as_trained(mlp):
        return _is_gated_mlp(mlp, x, 1.0)


def _is_gated_mlp(mlp: Any, x: Tensor, size: float) -> bool:
    """Where the largest gate is of this size."""
    try:
        x = x * (size / mlp.gate_proj(x).abs().max().clamp(min=1e-30))
    except Exception:  # weights of some other kind, packed in few bits perhaps
        return False
    return _gives(mlp, x, lambda: mlp.down_proj(nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x)).float())


class _Norm(Fused):
    weight: Tensor
    reader: tuple[nn.Module, ...] = ()
    """What alone reads the result, by matrix products, for each of which autocast would round it."""

    def forward(self, *given: Any, **named: Any) -> Any:
        kernels, weight_E, epsilon = in_training(), self.weight, _epsilon(self)
        x = given[0] if len(given) == 1 and not named else None
        if kernels is None or x is None or epsilon is None or not can_compute(x.device, x.dtype, weight_E.dtype):
            return kind_of(self).forward(self, *given, **named)
        if x.shape[-1] != len(weight_E):  # parts of a row by themselves, perhaps
            return kind_of(self).forward(self, *given, **named)
        dtype = torch.promote_types(x.dtype, weight_E.dtype)
        if torch.is_autocast_enabled("cpu") and x.dtype == torch.float32 and _feeds_products(self):
            dtype = torch.get_autocast_dtype("cpu")
        return _NormFunction.apply(x, weight_E, kernels, epsilon, dtype)


class _GatedMLP(Fused):
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, *given: Any, **named: Any) -> Any:
        kernels = in_training()
        x = given[0] if len(given) == 1 and not named else None
        if kernels is None or x is None or x.device.type != "cpu" or not _is_silu(self.act_fn):
            return kind_of(self).forward(self, *given, **named)
        gate_LI, up_LI = self.gate_proj(x), self.up_proj(x)
        same = (gate_LI.dtype, gate_LI.shape) == (up_LI.dtype, up_LI.shape)
        if not same or gate_LI.shape[-1] % LANES or not can_compute(gate_LI.device, gate_LI.dtype):
            return self.down_proj(self.act_fn(gate_LI) * up_LI)
        return self.down_proj(_GateFunction.apply(gate_LI, up_LI, kernels))


class _NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_E: Tensor, kernels: Kernels, epsilon: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        out, factors = kernels.rms_norm_kept(x, weight_E.float().contiguous(), epsilon, dtype)
        ctx.save_for_backward(x, weight_E, factors)
        ctx.kernels = kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, weight_E, factors = ctx.saved_tensors
        dx, dw_E = ctx.kernels.rms_norm_backward(gradient, x, weight_E.float().contiguous(), factors)
        return dx, dw_E.to(weight_E.dtype) if ctx.needs_input_grad[1] else None, None, None, None


class _GateFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_LI: Tensor, up_LI: Tensor, kernels: Kernels) -> Tensor:
        gate_LI, up_LI = gate_LI.contiguous(), up_LI.contiguous()
        ctx.save_for_backward(gate_LI, up_LI)
        ctx.kernels = kernels
        return kernels.silu_gate_of(gate_LI, up_LI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LI: Tensor) -> tuple[Tensor, Tensor, None]:
        return *ctx.kernels.silu_gate_backward(gradient_LI, *ctx.saved_tensors), None


def _feeds_products(norm: nn.Module) -> bool:
    """Still: an adapter may have been put in the place of a product."""
    reader: tuple[nn.Module, ...] = getattr(norm, "reader", ())
    return bool(reader) and all(map(_reads_by_products, reader))


def _may_round(norms: Sequence[nn.Module], run: Callable[[], Tensor]) -> bool:
    """Whether the model gives the same bits under autocast when the results of these norms are rounded.

    Where something besides products reads one, as a residual stream that begins behind its norm does, it does not.
    """

    def rounded(norm: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out.bfloat16()

    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            expected = run()
            hooks = [norm.register_forward_hook(rounded) for norm in norms]
            try:
                return torch.equal(run(), expected)
            finally:
                for hook in hooks:
                    hook.remove()
    except Exception:  # whatever an architecture makes of bfloat16: each product rounds by itself
        return False


def _reads_by_products(module: nn.Module) -> bool:
    """Whether what an attention or a gated MLP is given goes into linear layers and nowhere else."""
    parts = dict(module.named_children())
    if isinstance(module, _GatedMLP):
        readers = ["gate_proj", "up_proj"]
    else:
        readers = [*PROJECTIONS]
        if not {*readers, "o_proj"} <= parts.keys() <= _ATTENTION:
            return False
    return all(type(parts[name]) is nn.Linear for name in readers)


def _epsilon(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _is_silu(module: nn.Module) -> bool:
    return type(module) in SILU and is_plain(module)


def _gives(module: nn.Module, x: Tensor, formula: Callable[[], Tensor]) -> bool:
    """Whether it computes this of `x`, and takes nothing besides: a second input may change what it does."""
    if len(inspect.signature(module.forward).parameters) != 1:
        return False
    try:
        actual, expected = module.forward(x), formula()
    except Exception:  # whatever an architecture makes of such an input: it is called as it is
        return False
    return are_near(actual, expected)
