"""How the weights of a model lie on the ranks of a job, and where each rank keeps its part.

FSDP cuts every tensor along its first dimension: a rank holds consecutive rows of it. With fewer ranks to a copy than
there are (hybrid sharding), a row lies on one rank of each group:

    ranks 0 1 2 3, two to a copy      copy 0: rows of the first half on rank 0, of the second on rank 1
                                      copy 1: the same on ranks 2 and 3

Neighbours share a copy, since they are the ranks of one machine. A gradient is summed inside of a group first, each
rank its rows, and these sums among the ranks that hold the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
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
    group: int
    """Ranks that share one copy; all of them, or fewer that divide their number."""
    deadline: float = 600.0
    """Seconds after which a rank of a group that does not answer is lost."""
    cpu_offload: bool = False
    """Each rank keeps its part in main memory, with gradients and moments, and copies a block to the device for its
    pass. AdamW then runs on the processor."""

    @staticmethod
    def of(train: TrainConfig, ranks: Ranks) -> Layout:
        group = ranks.size if train.shard == "auto" else train.shard
        return Layout(ranks=ranks, group=group, deadline=train.rank_deadline, cpu_offload=train.cpu_offload)

    def for_fsdp(self, device: torch.device) -> dict[str, Any]:
        """The arguments of `fully_shard`, for a model that computes on `device`.

        Weights come together in the precision in which they lie, float32 where they are trained. Autocast casts them
        where a product reads them, as in one process, so that norms and embeddings compute in the same precision on any
        number of devices.
        """
        mesh = _mesh(device.type, self.ranks.size, self.group, self.deadline)
        found: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": True,
        }
        if self.cpu_offload:
            found["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        return found

    def kept_on(self, device: torch.device) -> torch.device:
        """Where parts lie between the passes of a model that computes on `device`."""
        return torch.device("cpu") if self.cpu_offload else device


@cache
def _mesh(device: str, size: int, group: int, deadline: float) -> DeviceMesh:
    """Of so many ranks; with two dimensions, copies and parts, where not all share one copy. The groups of both are
    made here, because those that PyTorch makes wait for half an hour."""
    if group == size:
        return init_device_mesh(device, (size,))
    ranks = torch.arange(size).view(-1, group)
    groups = [_own_group(lines.tolist(), deadline) for lines in (ranks.T, ranks)]
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=("copies", "parts"))


def _own_group(lines: list[list[int]], deadline: float) -> dist.ProcessGroup:
    """That of these groups of ranks in which this one is; all ranks make all of them."""
    own, _ = dist.new_subgroups_by_enumeration(lines, timeout=timedelta(seconds=deadline))
    assert isinstance(own, dist.ProcessGroup), "every rank is in one of them"
    return own


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: DTensor) -> int:
    """The number of the first row that this rank holds."""
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offset[0] if offset else 0


def in_first_copy(tensor: DTensor) -> bool:
    """Whether what this rank holds is part of the first copy: of one copy everything is."""
    place = tensor.device_mesh.get_coordinate() or []
    return not any(number for number, how in zip(place, tensor.placements, strict=True) if how.is_replicate())


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
