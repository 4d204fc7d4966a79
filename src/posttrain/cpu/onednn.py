"""Matrix products through oneDNN on a CPU, in two forms that are much faster than plain products.

    packed weights    a weight is stored once in the layout of oneDNN's kernels; for weights that many products share
                      (decoding)
    onednn_products   float32 products of PyTorch go through oneDNN inside this context manager (training passes)

Measured on 2 cores of a Zen 5 (AVX512, no AMX), float32: plain products reach 200 GFLOP/s, these 350 to 490. The
context manager allows oneDNN to round the factors to bfloat16, which it does on processors whose instructions make that
faster. choice.py measures whether it does before it is used.

N rows, K inputs, M outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from posttrain.errors import ModelError

TYPICAL_ROWS = 64
"""Number of rows for which weights are packed. The layout works for any number; from 16 on it makes no difference."""

KEPT_KERNELS = 256
"""Number of compiled kernels that are cached. oneDNN compiles a kernel for each shape of a product. Shapes of decoding
come again in every step: some five for each number of rows, and a plain decoder uses few numbers of rows
(group_rows.py). Shapes of training passes hardly ever come again, because other steps have rows of other lengths. The
default is 1,024 kernels of up to half a megabyte each, most of them for past passes. oneDNN caches kernels and PyTorch
their descriptions; both read the environment once, at the first product."""
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, str(KEPT_KERNELS))


def available() -> bool:
    """Whether PyTorch is built with oneDNN."""
    return torch.backends.mkldnn.is_available()


@cache
def packs(dtype: torch.dtype) -> bool:
    """Whether weights of this precision can be packed. PyTorch packs bfloat16 only on processors with AVX512 or
    conversions from bfloat16, which most laptops lack."""
    try:
        packed_linear(torch.ones(1, 16, dtype=dtype), pack(torch.ones(16, 16, dtype=dtype)), None)
    except RuntimeError:
        return False
    return True


@torch.no_grad()
def pack(weight_MK: Tensor) -> Tensor:
    """Convert a weight to oneDNN's layout: an opaque tensor of the same shape and dtype, float32 or bfloat16.

    See `packs`.
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight_MK.detach().contiguous(), TYPICAL_ROWS)


def unpack(packed_MK: Tensor) -> Tensor:
    """The dense weight that was packed, bit for bit."""
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
    """Compute float32 products on a CPU through oneDNN inside, and restore the setting afterwards.

    The setting belongs to the process, not to the thread. It does not affect products on a GPU.
    """
    settings = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


class PackedLinear(nn.Module):
    """A replacement for `nn.Linear` without gradient, with a weight in oneDNN's layout, float32 or bfloat16.

    `weight` is a buffer with the same name as in `nn.Linear`, so the tensors of a model keep their names. It is opaque:
    use `dense` to read it and `load_weight` to replace it.
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
        """Replace the weight by this one, cast to the precision of the layer."""
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
    """Replace every `nn.Linear` by a `PackedLinear` in a model that will only decode from now on. Layers in a precision
    that this processor cannot pack stay as they are.

    Each dense weight is freed once it is packed. A weight that is also an embedding stays dense there, and the head
    gets a packed copy. If the model uses the weight of a layer for anything other than a product, raises ModelError and
    restores the model.
    """
    layers = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) is nn.Linear and packs(module.weight.dtype)
    }
    packed: dict[int, PackedLinear] = {}
    for name, linear in layers.items():
        if id(linear) not in packed:
            packed[id(linear)] = PackedLinear(linear)
            del linear.weight  # `layers` keeps the module alive, but its weight must be freed
        _put(model, name, packed[id(linear)])
    try:
        _run(model)
    except Exception as error:  # an architecture may do anything with the weight of a layer
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
