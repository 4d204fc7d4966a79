"""Numbers that are read from tensors for metrics: immediately on a CPU, in one copy per update on a GPU.

Reading a number from a GPU waits for all work that was queued before, and during the wait the host queues nothing. So
on a GPU the metrics of a micro-batch hold tensors of one number each. They are merged there, in float64 like the
numbers on a CPU, and read in one copy at the end of an update (train/metrics.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def number(x: Tensor) -> float | Tensor:
    """Return the number in `x` as a float; on a GPU, return it as a tensor that is read later."""
    return float(x) if x.device.type == "cpu" else x.detach().double()


def nothing_in(mask: Tensor) -> bool:
    """Return true if the mask is known to be empty. On a GPU the answer is always false, to avoid a wait: metrics of an
    empty mask are neutral when they are merged."""
    return mask.device.type == "cpu" and not mask.any()


def picked(x: Tensor, mask: Tensor, *, otherwise: float) -> Tensor:
    """`[n]` values in the mask. On a GPU, to avoid a wait for n: all of `x`, with `otherwise` outside the mask."""
    return x[mask] if x.device.type == "cpu" else torch.where(mask, x, otherwise).flatten()
