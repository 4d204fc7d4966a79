"""How the weights of a model lie on the ranks of a job, and where each rank keeps its part.

FSDP cuts every tensor along its first dimension: a rank holds consecutive rows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from posttrain.ranks.agreement import Ranks

if TYPE_CHECKING:
    from posttrain.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Of all models of a run."""

    ranks: Ranks
    cpu_offload: bool = False
    """Each rank keeps its part in main memory, with gradients and moments, and copies a block to the device for its
    pass. AdamW then runs on the processor."""

    @staticmethod
    def of(train: TrainConfig, ranks: Ranks) -> Layout:
        return Layout(ranks=ranks, cpu_offload=train.cpu_offload)

    def for_fsdp(self, device: torch.device) -> dict[str, Any]:
        """The arguments of `fully_shard`, for a model that computes on `device`."""
        found: dict[str, Any] = {"mesh": _mesh(device.type, self.ranks.size), "reshard_after_forward": True}
        if self.cpu_offload:
            found["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        return found

    def kept_on(self, device: torch.device) -> torch.device:
        """Where parts lie between the passes of a model that computes on `device`."""
        return torch.device("cpu") if self.cpu_offload else device


@cache
def _mesh(device: str, size: int) -> DeviceMesh:
    return init_device_mesh(device, (size,))


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: DTensor) -> int:
    """The number of the first row that this rank holds."""
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offset[0] if offset else 0


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """`value`, a whole tensor, laid out as `like` is; nothing is sent, since every rank has read it."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    local, start = like.to_local(), first_row(like)
    rows = value[start : start + len(local)].to(local.device, copy=True)  # a view would keep all of `value`
    return _with_part(rows, like)


def whole_on(device: torch.device, tensor: DTensor) -> Tensor:
    """All of it, on that device of every rank; each sends its part from there."""
    return _with_part(tensor.to_local().to(device), tensor).full_tensor()


def _with_part(rows: Tensor, like: DTensor) -> DTensor:
    how: dict[str, Any] = {"run_check": False, "shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(rows, like.device_mesh, like.placements, **how)
