"""Linear layers that read the same input, as one product where that saves more than it costs.

A LoRA adapter is a product, too: `W x + s B A x = (W + s B A) x`, so a layer with adapters is one product of merged
weights. In float32 the difference is rounding; in half precision a small adapter would be lost in that of W.

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
    """A function that returns the outputs of the layers side by side, `[..., M]`.

    Weights are put together now, from what the layers hold now: for as long as the function lives, a call of the
    sampler. Layers that are more than a product (something waits for their call) are called one by one. With `kernels`
    the product is theirs where they know it: of dense float32 weights, and of bfloat16 ones, packed or not.
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
    """Whether all that the adapters of this layer do is to add a product, in a precision in which none is lost."""
    if type(layer) is not LoRALinear or layer.fan_in_fan_out or layer.merged or type(layer.base_layer) is not nn.Linear:
        return False
    active = _active_adapters(layer)
    variants = any(name in layer.lora_variant or layer.lora_bias[name] for name in active)
    inside = [layer.base_layer, *(part[name] for part in (layer.lora_A, layer.lora_B) for name in active)]
    exact = {parameter.dtype for module in inside for parameter in module.parameters()}
    dropouts = [layer.lora_dropout[name] for name in active]  # which do nothing in decoding
    variants |= any(type(dropout) not in (nn.Identity, nn.Dropout) for dropout in dropouts)
    return not variants and not any(map(is_hooked, inside + dropouts)) and exact in ({torch.float32}, {torch.float64})


def _alone(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Without the way through `__call__` where nothing waits there."""
    return layer if is_hooked(layer) else layer.forward


def _without_adapters(layer: nn.Module) -> nn.Module:
    return layer.base_layer if merges_adapters(layer) else layer  # pyright: ignore[reportReturnType]


def _active_adapters(layer: LoRALinear) -> list[str]:
    """Those of the layer that work now."""
    return [] if layer.disable_adapters else [name for name in layer.active_adapters if name in layer.lora_A]


def _weight(layer: nn.Module) -> Tensor:
    """What the layer multiplies by."""
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
    """Of layers that can be joined."""
    plain: list[Any] = [_without_adapters(layer) for layer in layers]
    numbers = {tensor.dtype for layer in plain for tensor in (layer.weight, layer.bias) if tensor is not None}
    outputs, dtype = sum(layer.out_features for layer in plain), plain[0].weight.dtype
    if kernels is None or numbers != {dtype} or not kernels.can_multiply(dtype, plain[0].in_features, outputs):
        return False
    return type(plain[0]) is nn.Linear or dtype == torch.bfloat16
