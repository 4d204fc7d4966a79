"""RMSNorm and the gate of an MLP as one kernel each in training: fewer passes over memory, and less kept of them.

In operations of PyTorch, as transformers has them, a norm keeps its input, the normed input and, under autocast, a copy
of the result for each product that reads it; here its input, one number of each row and one copy. A gate keeps
`silu(gate)` besides gate and up; here those two alone. What is recognised, by what it computes when it is tried, gets
another class, which computes as before wherever there are no kernels (`kernels.training_by`) or something waits for a
part of it to be called. Copies have the class that the model came with. Gradients of gradients are not defined.

L tokens, E width of the model, I of the MLP.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as hooks_of_all
from transformers.activations import SiLUActivation

from posttrain.models.kernels import LANES, Kernels, can_compute, in_training

SILU = (nn.SiLU, SiLUActivation)
_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_HOOKS_OF_ALL = (
    hooks_of_all._global_forward_hooks,
    hooks_of_all._global_forward_pre_hooks,
    hooks_of_all._global_backward_hooks,
    hooks_of_all._global_backward_pre_hooks,
)


def fuse_layers(body: nn.Module, run: Callable[[], Tensor] | None = None) -> None:
    """Let kernels compute the norms and gates of this model that are nothing else; for training alone.

    `run` gives hidden states of the model for some tokens. Norms round their result under autocast once for all that
    read it, in place of each by itself, where those stay the same bits by that; without `run` none does.
    """
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
                if isinstance(found := parts[norm], _Norm) and _reads_by_products(parts[reader]):
                    found.reader = (parts[reader],)
    norms = [module for module in body.modules() if isinstance(module, _Norm) and module.reader]
    if norms and (run is None or not _may_round(norms, run)):
        for norm in norms:
            norm.reader = ()


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class that the model came with."""
    return getattr(type(module), "came_as", type(module))


def is_rms_norm(module: nn.Module) -> bool:
    """Whether this is `x / sqrt(mean(x^2) + epsilon) * weight` and nothing else, for small and large numbers."""
    weight, epsilon = getattr(module, "weight", None), _epsilon(module)
    if epsilon is None or not isinstance(weight, Tensor) or weight.dim() != 1 or len(weight) % LANES:
        return False
    if [*module.children()] or len([*module.parameters()]) != 1 or not weight.any() or not _is_plain(module):
        return False
    return all(_is_rms_norm(module, weight, epsilon, size) for size in (max(epsilon, 0) ** 0.5, 1.0, 10.0, 1000.0))


def _is_rms_norm(module: nn.Module, weight: Tensor, epsilon: float, size: float) -> bool:
    """For numbers of about this size; at the root of epsilon it counts as much as they do."""
    x = _noise(3, len(weight), like=weight, size=size)
    exact = x.float()
    expected = exact * (exact.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt() * weight.float()
    return size == 0 or _gives(module, x, lambda: expected)


def is_gated_mlp(module: nn.Module) -> bool:
    """Whether this is `down(silu(gate(x)) * up(x))` and nothing else, for small and large numbers."""
    mlp: Any = module
    if {name for name, _ in module.named_children()} != _PARTS or not _is_silu(mlp.act_fn) or not _is_plain(module):
        return False
    width, like = getattr(mlp.gate_proj, "in_features", None), next(iter(mlp.parameters()), None)
    if width is None or like is None or not like.is_floating_point():
        return False
    return all(_is_gated_mlp(mlp, _noise(1, 3, width, like=like), size) for size in (1.0, 100.0))


def _is_gated_mlp(mlp: Any, x: Tensor, size: float) -> bool:
    """Where the largest gate is of this size."""
    try:
        x = x * (size / mlp.gate_proj(x).abs().max().clamp(min=1e-30))
    except Exception:  # weights of some other kind, packed in few bits perhaps
        return False
    return _gives(mlp, x, lambda: mlp.down_proj(nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x)).float())


class _Fused(nn.Module):
    """What both have in common: a copy, pickled or not, is of the class that the model came with.

    A class that others derive from this one, or a method of it that they bind to a copy, works as well: what is not
    computed here is what `kind_of` says.
    """

    came_as: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (kind_of(self),), {name: value for name, value in vars(self).items() if name != "reader"}


class _Norm(_Fused):
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


class _GatedMLP(_Fused):
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


@cache
def _fused(base: type[nn.Module], how: type[_Fused]) -> type[nn.Module]:
    """That class, computed in this way; errors and printed models call it as before."""
    about = {"__module__": base.__module__, "__qualname__": base.__qualname__, "came_as": base}
    return type(base.__name__, (how, base), about)


def _new(base: type[nn.Module]) -> nn.Module:
    return base.__new__(base)


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
        readers = ["q_proj", "k_proj", "v_proj"]
        if not {*readers, "o_proj"} <= parts.keys() <= _ATTENTION:
            return False
    return all(type(parts[name]) is nn.Linear for name in readers)


def _epsilon(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _is_plain(module: nn.Module) -> bool:
    """Nothing waits for it to be called."""
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not (any(own) or "forward" in vars(module) or any(_HOOKS_OF_ALL))


def _is_silu(module: nn.Module) -> bool:
    return type(module) in SILU and _is_plain(module)


def _noise(*shape: int, like: Tensor, size: float = 10.0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def _gives(module: nn.Module, x: Tensor, formula: Callable[[], Tensor]) -> bool:
    """Whether it computes this of `x`, and takes nothing besides: a second input may change what it does.

    Zeros say nothing: a projection that is zero at the start hides what stands before it.
    """
    if len(inspect.signature(module.forward).parameters) != 1:
        return False
    try:
        actual, expected = module.forward(x), formula()
    except Exception:  # whatever an architecture makes of such an input: it is called as it is
        return False
    tolerance = 2e-2 if x.dtype in (torch.float16, torch.bfloat16) else 1e-5
    return (
        isinstance(actual, Tensor)
        and actual.shape == expected.shape
        and bool(expected.any())
        and bool((actual - expected).abs().max() <= tolerance * expected.abs().max())
    )
