"""Faster code for an NVIDIA GPU: attention over packed rows without grids, padding and masks.

It fills the hook of `posttrain.models.acceleration` for tensors on "cuda". Only the root package imports this package.
Without it, all results are the same up to rounding.

    varlen.py     attention over packed rows with `torch.nn.attention.varlen`
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
