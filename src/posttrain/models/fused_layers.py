"""RMSNorm and the gate of an MLP as one kernel each in training: fewer passes over memory, and less kept of them.

In operations of PyTorch, as transformers has them, a norm keeps its input, the normed input and, under autocast, a copy
of the result for each product that reads it; here its input, one number of each row and one copy. A gate keeps
`silu(gate)` besides gate and up; here those two alone. What is recognised, by what it computes and never by its name,
gets another class, which computes as before wherever there are no kernels (`kernels.training_by`) or something waits
for a part of it to be called. Copies have the class that the model came with.

L tokens, E width of the model, I of the MLP.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

from posttrain.models.kernels import LANES, Kernels, can_compute, in_training

SILU = (nn.SiLU, SiLUActivation)
_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


def fuse_layers(body: nn.Module) -> None:
    """Let kernels compute the norms and gates of this model that are nothing else; for training alone."""
    if next(body.parameters()).device.type != "cpu":
        return
    for module in body.modules():
        if isinstance(module, _Fused):
            continue
        if is_rms_norm(module):
            module.__class__ = _fused(type(module), _Norm)
        elif is_gated_mlp(module):
            module.__class__ = _fused(type(module), _GatedMLP)
    for layer in body.modules():
        parts = dict(layer.named_children())
        if parts.keys() == _LAYER:
            for norm, reader in (("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp")):
                if isinstance(found := parts[norm], _Norm):
                    found.feeds_products = _reads_by_products(parts[reader])


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class that the model came with."""
    return type(module).__bases__[1] if isinstance(module, _Fused) else type(module)


def is_rms_norm(module: nn.Module) -> bool:
    """Whether this is `x / sqrt(mean(x^2) + epsilon) * weight` and nothing else, large numbers included."""
    weight, epsilon = getattr(module, "weight", None), _epsilon(module)
    if epsilon is None or not isinstance(weight, Tensor) or weight.dim() != 1 or len(weight) % LANES:
        return False
    if [*module.children()] or len([*module.parameters()]) != 1 or not weight.any() or not _is_plain(module):
        return False
    x = _noise(3, len(weight), like=weight)
    exact = x.float()
    return _gives(module, x, exact * (exact.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt() * weight.float())


def is_gated_mlp(module: nn.Module) -> bool:
    """Whether this is `down(silu(gate(x)) * up(x))` and nothing else, large numbers included."""
    mlp: Any = module
    if {name for name, _ in module.named_children()} != _PARTS or type(mlp.act_fn) not in SILU or not _is_plain(module):
        return False
    width = getattr(mlp.gate_proj, "in_features", None)
    return width is not None and all(_is_gated_mlp(mlp, width, size) for size in (1.0, 100.0))


def _is_gated_mlp(mlp: Any, width: int, size: float) -> bool:
    """Where the largest gate is of this size."""
    x = _noise(1, 3, width, like=next(mlp.parameters()))
    largest = mlp.gate_proj(x).abs().max()
    x = x * (size / largest) if largest > 0 else x
    return _gives(mlp, x, mlp.down_proj(nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x)).float())


class _Fused(nn.Module):
    """What both have in common: a copy, pickled or not, is of the class that the model came with."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (kind_of(self),), vars(self)


class _Norm(_Fused):
    weight: Tensor
    feeds_products = False
    """Nothing but matrix products read the result, which autocast would round for each of them."""

    def forward(self, *given: Any, **named: Any) -> Any:
        kernels, weight_E, epsilon = in_training(), self.weight, _epsilon(self)
        x = given[0] if len(given) == 1 and not named else None
        if kernels is None or x is None or epsilon is None or not can_compute(x.device, x.dtype, weight_E.dtype):
            return super().forward(*given, **named)
        dtype = torch.promote_types(x.dtype, weight_E.dtype)
        if self.feeds_products and torch.is_autocast_enabled("cpu") and x.dtype == torch.float32:
            dtype = torch.get_autocast_dtype("cpu")
        return _NormFunction.apply(x, weight_E, kernels, epsilon, dtype)


class _GatedMLP(_Fused):
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, *given: Any, **named: Any) -> Any:
        kernels = in_training()
        x = given[0] if len(given) == 1 and not named else None
        if kernels is None or x is None or x.device.type != "cpu" or not _is_plain(self.act_fn):
            return super().forward(*given, **named)
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


@cache
def _fused(base: type[nn.Module], how: type[_Fused]) -> type[nn.Module]:
    """That class, computed in this way; errors and printed models call it as before."""
    return type(base.__name__, (how, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})


def _new(base: type[nn.Module]) -> nn.Module:
    return base.__new__(base)


def _reads_by_products(module: nn.Module) -> bool:
    """Whether what an attention or a gated MLP is given goes into linear layers and nowhere else."""
    parts = dict(module.named_children())
    if isinstance(module, _GatedMLP):
        readers = ["gate_proj", "up_proj"]
    else:
        readers = ["q_proj", "k_proj", "v_proj"]
        if not {*readers, "o_proj"} <= parts.keys() <= _ATTENTION:
            return False
    return all(type(parts[name]) is nn.Linear for name in readers)


def _epsilon(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _is_plain(module: nn.Module) -> bool:
    """Nothing waits for it to be called."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _noise(*shape: int, like: Tensor) -> Tensor:
    return 10 * torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def _gives(module: nn.Module, x: Tensor, expected: Tensor) -> bool:
    """Whether it computes this of `x`, and takes nothing besides: a second input may change what it does."""
    if len(inspect.signature(module.forward).parameters) != 1:
        return False
    try:
        actual = module.forward(x)
    except Exception:  # whatever an architecture makes of such an input: it is called as it is
        return False
    tolerance = 2e-2 if x.dtype in (torch.float16, torch.bfloat16) else 1e-5
    return (
        isinstance(actual, Tensor)
        and actual.shape == expected.shape
        and bool((actual - expected).abs().max() <= tolerance * expected.abs().max())
    )
