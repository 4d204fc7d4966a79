"""Linear layers whose weights are packed once per policy version, for a model that only decodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posttrain.errors import ModelError
from posttrain.models import onednn


class PackedLinear(nn.Module):
    """Computes what `nn.Linear` does, without gradient, from a weight in oneDNN's layout, float32 or bfloat16.

    `weight` is a buffer under the name that it has in `nn.Linear`, so the tensors of a model keep their names; it is
    opaque: `dense` reads it, `load` replaces it.
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", onednn.pack(linear.weight))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return onednn.packed_linear(x, self.weight, self.bias)

    @torch.no_grad()
    def load(self, weight_MK: Tensor) -> None:
        """Compute with this weight from now on, cast to the precision of the layer."""
        self.weight = onednn.pack(weight_MK.to(self.weight.dtype))

    def dense(self) -> nn.Linear:
        """The layer that this one was packed from."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(onednn.unpack(self.weight), requires_grad=False)
        linear.bias = self.bias
        return linear

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{shape}, {self.weight.dtype}"


def pack_linears(model: nn.Module) -> None:
    """Put a `PackedLinear` in place of every `nn.Linear` of a model that only decodes from now on.

    Each dense weight is freed once it is packed. A weight that is also an embedding stays there, dense, and is packed
    for the head beside it. Raises ModelError, with the model as it was, when it does more with the weight of a layer
    than to multiply by it.
    """
    layers = {name: module for name, module in model.named_modules(remove_duplicate=False) if type(module) is nn.Linear}
    packed: dict[int, PackedLinear] = {}
    for name, linear in layers.items():
        if id(linear) not in packed:
            packed[id(linear)] = PackedLinear(linear)
            del linear.weight  # `layers` keeps the module, which must not keep its weight
        _put(model, name, packed[id(linear)])
    try:
        _try(model)
    except Exception as error:  # whatever an architecture does with the weight of a layer
        for name, linear in layers.items():
            _put(model, name, packed[id(linear)].dense())
        reason = next(iter(str(error).splitlines()), "")
        raise ModelError(
            given=f"{type(model).__name__} does not run with packed weights ({type(error).__name__}: {reason})",
            allowed="a model whose linear layers are only called",
            fix="Decode with its own modules.",
        ) from error


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)


@torch.no_grad()
def _try(model: nn.Module) -> None:
    device = next(model.parameters()).device
    model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device))
