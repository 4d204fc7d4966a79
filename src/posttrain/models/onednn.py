"""Matrix products through oneDNN on a CPU, in the two forms in which it is much faster than plain ones.

    packed weights    a weight is laid out once as the kernels want it; for weights that many products share (decoding)
    onednn_products   float32 products of PyTorch go through oneDNN as long as the scope is open (training passes)

Measured on 2 cores of a Zen 5 (AVX512, no AMX), float32: plain products reach 200 GFLOP/s, these 350 to 490. What the
scope allows oneDNN to do is to round the factors to bfloat16, and where a processor has instructions that gain by it,
it does. Whether it does is probed before it is used (compute.py), never assumed.

N rows, K inputs, M outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

TYPICAL_ROWS = 64
"""Rows for which weights are laid out. The layout is right for any number; from 16 on it makes no difference."""

KEPT_KERNELS = 256
"""A kernel is compiled for each shape of a product, and kept in case that shape comes again. Those of decoding do in
every step, some five for each number of rows, of which a plain decoder has few (rollout/group_rows.py); those of
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
