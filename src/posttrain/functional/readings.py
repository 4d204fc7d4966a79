"""Numbers that are read from tensors to be shown: at once from a CPU, all together from a GPU.

To read a number from a GPU is to wait for everything that was asked of it before, and while the host waits it asks for
nothing more. So metrics of a micro-batch hold tensors of one number each where the tensors are on a GPU. They are
merged there, in float64 like the numbers of a CPU, and read in one copy at the end of an update (train/metrics.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def number(x: Tensor) -> float | Tensor:
    """The one number in `x`, or where it stands on a GPU."""
    return float(x) if x.device.type == "cpu" else x.detach().double()


def nothing_in(mask: Tensor) -> bool:
    """Whether it is known that nothing is masked in. On a GPU nobody waits for the answer: what is then computed from
    nothing is neutral where metrics are merged."""
    return mask.device.type == "cpu" and not mask.any()


def picked(x: Tensor, mask: Tensor, *, otherwise: float) -> Tensor:
    """`[n]` what is masked in; on a GPU, where n would be waited for, all of `x` with `otherwise` elsewhere."""
    return x[mask] if x.device.type == "cpu" else torch.where(mask, x, otherwise).flatten()
