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
from posttrain.rollout.packed_linear import PackedLinear

JOINED_WEIGHTS = 2**21
"""Weights up to which layers are joined. The call of a larger product costs little beside what it reads."""


def joint_linear(layers: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    """A function that returns the outputs of the layers side by side, `[..., M]`.

    Weights are put together now, from what the layers hold now: for as long as the function lives, a call of the
    sampler. Layers that are more than a product (an adapter, a hook) are called one by one.
    """
    if len(layers) == 1:
        return _alone(layers[0])
    if not _can_be_joined(layers):
        each = [_alone(layer) for layer in layers]
        return lambda x: torch.cat([layer(x) for layer in each], dim=-1)
    biases = [layer.bias for layer in layers]
    bias_M = None if biases[0] is None else torch.cat(biases)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if type(layers[0]) is PackedLinear:
        weight_MK = onednn.pack(torch.cat([onednn.unpack(layer.weight) for layer in layers]))  # pyright: ignore[reportArgumentType]
        return partial(onednn.packed_linear, packed_MK=weight_MK, bias_M=bias_M)
    return partial(F.linear, weight=torch.cat([layer.weight for layer in layers]), bias=bias_M)  # pyright: ignore[reportArgumentType, reportCallIssue]


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
    return alike and sum(w.numel() for w in weights) <= JOINED_WEIGHTS and not torch.is_autocast_enabled(device)  # pyright: ignore
