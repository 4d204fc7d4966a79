"""Matrix products through oneDNN on a CPU, in the two forms in which it is much faster than plain ones.

    packed weights    a weight is laid out once as the kernels want it; for weights that many products share (decoding)
    onednn_products   float32 products of PyTorch go through oneDNN as long as the scope is open (training passes)

Measured on 2 cores of a Zen 5 (AVX512, no AMX), float32: plain products reach 200 GFLOP/s, these 350 to 490. What the
scope allows oneDNN to do is to round the factors to bfloat16, and where a processor has instructions that gain by it,
it does. Whether it does is probed before it is used (choice.py), never assumed.

N rows, K inputs, M outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posttrain.errors import ModelError

TYPICAL_ROWS = 64
"""Rows for which weights are laid out. The layout is right for any number; from 16 on it makes no difference."""

KEPT_KERNELS = 256
"""A kernel is compiled for each shape of a product, and kept in case that shape comes again. Those of decoding do in
every step, some five for each number of rows, of which a plain decoder has few (group_rows.py); those of
training passes hardly ever, for other steps have rows of other lengths. By default 1,024 are kept, up to half a
megabyte each: most of them would be of passes that are over. oneDNN keeps kernels and PyTorch their descriptions; both
ask the environment once, at the first product."""
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, str(KEPT_KERNELS))


def available() -> bool:
    """PyTorch is built with oneDNN."""
    return torch.backends.mkldnn.is_available()


@torch.no_grad()
def pack(weight_MK: Tensor) -> Tensor:
    """The weight in oneDNN's own layout: an opaque tensor of the same shape and dtype, float32 or bfloat16."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_MK.detach().contiguous(), TYPICAL_ROWS)


def unpack(packed_MK: Tensor) -> Tensor:
    """What was packed, bit by bit."""
    return packed_MK.to_dense()


def is_packed(tensor: Tensor) -> bool:
    return tensor.layout is torch._mkldnn  # type: ignore[attr-defined]


def packed_linear(x: Tensor, packed_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` for `x` of any leading shape, without gradient.

    The operator reads its input as if it were contiguous, whatever its strides say.
    """
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed_MK, bias_M, "none", [], "")


@contextmanager
def onednn_products() -> Iterator[None]:
    """Inside, float32 products on a CPU run through oneDNN; the setting is afterwards what it was before.

    Of the process, not of the thread. Nothing changes for products on a GPU.
    """
    settings = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


class PackedLinear(nn.Module):
    """Computes what `nn.Linear` does, without gradient, from a weight in oneDNN's layout, float32 or bfloat16.

    `weight` is a buffer under the name that it has in `nn.Linear`, so the tensors of a model keep their names; it is
    opaque: `dense` reads it, `load_weight` replaces it.
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", pack(linear.weight))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return packed_linear(x, self.weight, self.bias)

    @torch.no_grad()
    def load_weight(self, weight_MK: Tensor) -> None:
        """Compute with this weight from now on, cast to the precision of the layer."""
        self.weight = pack(weight_MK.to(self.weight.dtype))

    def dense(self) -> nn.Linear:
        """The layer that this one was packed from."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(unpack(self.weight), requires_grad=False)
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
        _run(model)
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
def _run(model: nn.Module) -> None:
    device = next(model.parameters()).device
    model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device))
