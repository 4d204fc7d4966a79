"""Linear layers that read the same input, as one product where that saves more than it costs.

M outputs of all layers together, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posttrain.models import onednn
from posttrain.models.kernels import COPIED_WEIGHTS, LANES, Kernels, in_panels
from posttrain.rollout.packed_linear import PackedLinear


def joint_linear(layers: Sequence[nn.Module], kernels: Kernels | None = None) -> Callable[[Tensor], Tensor]:
    """A function that returns the outputs of the layers side by side, `[..., M]`.

    Weights are put together now, from what the layers hold now: for as long as the function lives, a call of the
    sampler. Layers that are more than a product (an adapter, a hook) are called one by one. With `kernels` the product
    is theirs where they know it: of dense float32 weights.
    """
    if len(layers) > 1 and not _can_be_joined(layers):
        each = [joint_linear([layer], kernels) for layer in layers]
        return lambda x: torch.cat([layer(x) for layer in each], dim=-1)
    if len(layers) == 1 and not (_can_be_joined(layers) and _has_kernel(layers, kernels)):
        return _alone(layers[0])
    biases = [layer.bias for layer in layers]
    bias_M = None if biases[0] is None else torch.cat(biases)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if type(layers[0]) is PackedLinear:
        weight_MK = onednn.pack(torch.cat([onednn.unpack(layer.weight) for layer in layers]))  # pyright: ignore[reportArgumentType]
        return partial(onednn.packed_linear, packed_MK=weight_MK, bias_M=bias_M)
    weights: list[Tensor] = [layer.weight for layer in layers]  # pyright: ignore[reportAssignmentType]
    weight_MK = weights[0] if len(weights) == 1 else torch.cat(weights)
    if kernels is not None and _has_kernel(layers, kernels):
        return partial(kernels.linear, panels=in_panels(weight_MK), bias_M=bias_M, outputs=len(weight_MK))
    return partial(F.linear, weight=weight_MK, bias=bias_M)


def is_hooked(module: nn.Module) -> bool:
    """Whether something waits for this module to be called."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _alone(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Without the way through `__call__` where nothing waits there."""
    return layer if is_hooked(layer) else layer.forward


def _can_be_joined(layers: Sequence[nn.Module]) -> bool:
    kinds = {type(layer) for layer in layers}
    if kinds not in ({PackedLinear}, {nn.Linear}) or any(map(is_hooked, layers)):
        return False
    weights = [layer.weight for layer in layers]
    biased = {layer.bias is not None for layer in layers}
    alike = len({(weight.dtype, weight.shape[1]) for weight in weights}) == 1 and len(biased) == 1  # pyright: ignore
    device: str = weights[0].device.type  # pyright: ignore
    return alike and sum(w.numel() for w in weights) <= COPIED_WEIGHTS and not torch.is_autocast_enabled(device)  # pyright: ignore


def _has_kernel(layers: Sequence[nn.Module], kernels: Kernels | None) -> bool:
    """Of layers that can be joined."""
    if kernels is None or type(layers[0]) is not nn.Linear:
        return False
    tensors = [tensor for layer in layers for tensor in layer.parameters()]
    floats = {tensor.dtype for tensor in tensors} == {torch.float32} and layers[0].in_features > 0  # pyright: ignore
    return floats and not sum(layer.out_features for layer in layers) % LANES  # pyright: ignore
