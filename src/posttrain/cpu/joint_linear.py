"""Compute linear layers that read the same input as one product, if that saves more than it costs.

A LoRA adapter is a product, too: `W x + s B A x = (W + s B A) x`, so a layer with adapters is one product of merged
weights. In float32 the difference is rounding. In half precision the rounding of W would swallow a small adapter.

M outputs of all layers together, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoRALinear
from torch import Tensor, nn

from posttrain.cpu import onednn
from posttrain.cpu.kernel_formulas import in_panels
from posttrain.cpu.kernels import Kernels
from posttrain.cpu.onednn import PackedLinear
from posttrain.engines.decoding import is_hooked
from posttrain.models.footprint import COPIED_WEIGHTS


def joint_linear(layers: Sequence[nn.Module], kernels: Kernels | None = None) -> Callable[[Tensor], Tensor]:
    """A function that returns the concatenated outputs of the layers, `[..., M]`.

    The weights are joined now. The function keeps these values for its lifetime, which is one call of the sampler.
    Layers with hooks are called one by one. `kernels` compute the product if they can: for dense float32 weights, and
    for bfloat16 weights, packed or not.
    """
    if len(layers) > 1 and not _can_be_joined(layers):
        each = [joint_linear([layer], kernels) for layer in layers]
        return lambda x: torch.cat([layer(x) for layer in each], dim=-1)
    if len(layers) == 1 and not (_can_be_joined(layers) and _has_kernel(layers, kernels)):
        return _alone(layers[0])
    plain, weights = [_without_adapters(layer) for layer in layers], [_weight(layer) for layer in layers]
    biases = [layer.bias for layer in plain]
    bias_M = None if biases[0] is None else torch.cat(biases)  # pyright: ignore[reportArgumentType, reportCallIssue]
    packed = type(plain[0]) is PackedLinear
    dense = [onednn.unpack(weight) for weight in weights] if packed else weights
    weight_MK = dense[0] if len(dense) == 1 else torch.cat(dense)
    if kernels is not None and _has_kernel(layers, kernels):
        return partial(kernels.linear, panels=in_panels(weight_MK), bias_M=bias_M, outputs=len(weight_MK))
    if packed:
        return partial(onednn.packed_linear, packed_MK=onednn.pack(weight_MK), bias_M=bias_M)
    return partial(F.linear, weight=weight_MK, bias=bias_M)


def merges_adapters(layer: nn.Module) -> bool:
    """Whether the adapters of this layer only add a product, in a precision that loses nothing when they are merged."""
    if type(layer) is not LoRALinear or layer.fan_in_fan_out or layer.merged or type(layer.base_layer) is not nn.Linear:
        return False
    active = _active_adapters(layer)
    variants = any(name in layer.lora_variant or layer.lora_bias[name] for name in active)
    inside = [layer.base_layer, *(part[name] for part in (layer.lora_A, layer.lora_B) for name in active)]
    exact = {parameter.dtype for module in inside for parameter in module.parameters()}
    dropouts = [layer.lora_dropout[name] for name in active]  # they do nothing in decoding
    variants |= any(type(dropout) not in (nn.Identity, nn.Dropout) for dropout in dropouts)
    return not variants and not any(map(is_hooked, inside + dropouts)) and exact in ({torch.float32}, {torch.float64})


def _alone(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The layer as a function. Without hooks its `forward` is enough, which saves the overhead of `__call__`."""
    return layer if is_hooked(layer) else layer.forward


def _without_adapters(layer: nn.Module) -> nn.Module:
    return layer.base_layer if merges_adapters(layer) else layer  # pyright: ignore[reportReturnType]


def _active_adapters(layer: LoRALinear) -> list[str]:
    """Names of the adapters of a layer that are active now."""
    return [] if layer.disable_adapters else [name for name in layer.active_adapters if name in layer.lora_A]


def _weight(layer: nn.Module) -> Tensor:
    """The weight of a layer, with its adapters merged."""
    weight_MK: Tensor = _without_adapters(layer).weight  # pyright: ignore[reportAssignmentType]
    if merges_adapters(layer):
        for name in _active_adapters(layer):  # pyright: ignore[reportArgumentType]
            weight_MK = weight_MK + layer.get_delta_weight(name)  # pyright: ignore[reportCallIssue, reportOperatorIssue]
    return weight_MK


def _can_be_joined(layers: Sequence[nn.Module]) -> bool:
    plain = [_without_adapters(layer) for layer in layers]
    kinds = {type(layer) for layer in plain}
    if kinds not in ({PackedLinear}, {nn.Linear}) or any(map(is_hooked, [*layers, *plain])):
        return False
    weights = [layer.weight for layer in plain]
    biased = {layer.bias is not None for layer in plain}
    alike = len({(weight.dtype, weight.shape[1]) for weight in weights}) == 1 and len(biased) == 1  # pyright: ignore
    device: str = weights[0].device.type  # pyright: ignore
    return alike and sum(w.numel() for w in weights) <= COPIED_WEIGHTS and not torch.is_autocast_enabled(device)  # pyright: ignore


def _has_kernel(layers: Sequence[nn.Module], kernels: Kernels | None) -> bool:
    """Whether `kernels` can compute the joint product of layers that can be joined."""
    plain: list[Any] = [_without_adapters(layer) for layer in layers]
    numbers = {tensor.dtype for layer in plain for tensor in (layer.weight, layer.bias) if tensor is not None}
    outputs, dtype = sum(layer.out_features for layer in plain), plain[0].weight.dtype
    if kernels is None or numbers != {dtype} or not kernels.can_multiply(dtype, plain[0].in_features, outputs):
        return False
    return type(plain[0]) is nn.Linear or dtype == torch.bfloat16
