"""Faster code for a CPU: compiled kernels, packed weights, and decoders that run as a short list of operations.

This package implements the functions of the hook `posttrain.models.acceleration`. The root module registers its name,
only the hook imports it, and posttrain computes the same without it.

    choice.py                       measures which of the following pays on this machine
    kernels.py, kernels.cpp         attention, norms, rotations, experts, small products; compiled when first needed
    segment_attention.py            attention of packed rows in training, by a kernel; or by matrix products if there is
                                    no compiler or the mask is more than causal
    plain_decoder.py, group_rows.py decoding of plain decoders; each prompt is stored once for its group
    onednn.py                       packed weights
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor

from posttrain.cpu import kernels, onednn
from posttrain.cpu.choice import choose
from posttrain.cpu.onednn import pack_linears as pack
from posttrain.cpu.plain_trial import decoder
from posttrain.cpu.segment_attention import grid_attention, row_attention
from posttrain.models.acceleration import Draw
from posttrain.models.compute import Compute

__all__ = ["choose", "decoder", "draw", "grid_attention", "pack", "row_attention", "training"]


@contextmanager
def training(compute: Compute) -> Iterator[None]:
    """See `Acceleration`."""
    products = onednn.onednn_products() if compute.matmul == "onednn" else nullcontext()
    with products, kernels.training_by(kernels.chosen(compute)):
        yield


def draw(compute: Compute, logits_nV: Tensor) -> Draw | None:
    """See `Acceleration`."""
    made = kernels.chosen(compute)
    return made.choose if made is not None and kernels.can_compute(logits_nV.device, logits_nV.dtype) else None
