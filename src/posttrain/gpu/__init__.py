"""Faster code for an NVIDIA GPU: attention of packed rows without grids, padding and masks.

Fills the hook of `posttrain.models.acceleration` for tensors on "cuda". Nothing but the root knows this package, and
everything computes the same without it, but for rounding.

    varlen.py     attention of packed rows by `torch.nn.attention.varlen`
"""

from __future__ import annotations

from posttrain.gpu.varlen import row_attention
from posttrain.models.acceleration import Plain

_plain = Plain()
choose, decoder, draw, grid_attention, pack, training = (
    _plain.choose,
    _plain.decoder,
    _plain.draw,
    _plain.grid_attention,
    _plain.pack,
    _plain.training,
)

__all__ = ["choose", "decoder", "draw", "grid_attention", "pack", "row_attention", "training"]
