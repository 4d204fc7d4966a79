"""The distribution of a model's weights over the ranks of a job, and where each rank keeps its part.

FSDP cuts every tensor along its first dimension: a rank holds consecutive rows of it. If fewer ranks share a copy than
there are (hybrid sharding), each group of ranks holds a whole copy:

    ranks 0 1 2 3, two to a copy      copy 0: rows of the first half on rank 0, of the second on rank 1
                                      copy 1: the same on ranks 2 and 3

Neighbouring ranks share a copy, because they are on one machine. A gradient is first summed within a group, where each
rank sums its rows. These sums are then added across the ranks that hold the same rows.

If matrices are divided among neighbours (matrices.py), each matrix is cut twice: by rows or columns for the neighbours,
and by rows for the ranks that have other rows of the batch:

    ranks 0 1 2 3, two neighbours each     of a matrix divided by columns: the first half of its rows on ranks 0 and 1,
                                           its left columns on ranks 0 and 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from posttrain.ranks.agreement import Ranks
from posttrain.ranks.group import own_group

if TYPE_CHECKING:
    from posttrain.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of all models of a run."""

    ranks: Ranks
    group: int
    """Number of ranks with different rows of the batch that share one copy: all, or a divisor of their number."""
    tensor: int = 1
    """Number of neighbours that divide matrices and compute the same rows."""
    deadline: float = 600.0
    """Seconds after which a rank that does not answer its group counts as lost."""
    cpu_offload: bool = False
    """Whether each rank keeps its part in main memory, with gradients and moments, and copies each block to the device
    for its pass. AdamW then runs on the CPU."""

    @staticmethod
    def of(train: TrainConfig, ranks: Ranks) -> Layout:
        group = ranks.size // train.tensor if train.shard == "auto" else train.shard
        return Layout(
            ranks=ranks,
            group=group,
            tensor=train.tensor,
            deadline=train.rank_deadline,
            cpu_offload=train.cpu_offload,
        )

    def for_fsdp(self, device: torch.device) -> dict[str, Any]:
        """Return the arguments of `fully_shard`, for a model that computes on `device`.

        Weights are gathered in the precision in which they are stored, float32 if they are trained. Autocast casts them
        for each product, as in one process, so that norms and embeddings compute in the same precision on any number of
        devices.
        """
        mesh = self._mesh(device)
        if self.tensor > 1:  # ranks that divide matrices compute the same rows and have the same gradient
            mesh = mesh["parts"] if mesh.ndim == 2 else mesh["copies", "parts"]
        found: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": True,
        }
        if self.cpu_offload:
            found["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        return found

    def among_neighbours(self, device: torch.device) -> DeviceMesh:
        """Return the mesh of neighbours that divide the matrices of a model that computes on `device`."""
        return self._mesh(device)["tensor"]

    def _mesh(self, device: torch.device) -> DeviceMesh:
        sizes = {"copies": self.ranks.size // (self.group * self.tensor), "parts": self.group, "tensor": self.tensor}
        names = tuple(name for name in sizes if name == "parts" or sizes[name] > 1)
        return _mesh(device.type, tuple(sizes[name] for name in names), names, self.deadline)

    def kept_on(self, device: torch.device) -> torch.device:
        """Return where parts are kept between the passes of a model that computes on `device`."""
        return torch.device("cpu") if self.cpu_offload else device


@cache
def _mesh(device: str, sizes: tuple[int, ...], names: tuple[str, ...], deadline: float) -> DeviceMesh:
    """Return the mesh of all ranks. For a mesh of several dimensions the groups are made here, because groups that
    PyTorch makes wait for half an hour."""
    if len(sizes) == 1:
        return init_device_mesh(device, sizes)
    ranks = torch.arange(math.prod(sizes)).view(sizes)
    groups = [
        own_group(ranks.movedim(dimension, -1).flatten(0, -2).tolist(), timedelta(seconds=deadline))
        for dimension in range(ranks.dim())
    ]
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=names)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def corner(tensor: DTensor) -> tuple[int, ...]:
    """Return the start of this rank's part in the whole tensor: its first row, first column, and so on."""
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)


def box(tensor: DTensor) -> tuple[slice, ...]:
    """Return this rank's part, as an index of the whole tensor."""
    return tuple(
        slice(start, start + size) for start, size in zip(corner(tensor), tensor.to_local().shape, strict=True)
    )


def in_first_copy(tensor: DTensor) -> bool:
    """Return whether this rank's part belongs to the first copy; always true if there is one copy."""
    place = tensor.device_mesh.get_coordinate() or []
    return not any(number for number, how in zip(place, tensor.placements, strict=True) if how.is_replicate())


def is_repeated(tensor: DTensor) -> bool:
    """Return whether other ranks hold the same part: ranks of other copies, or neighbours."""
    sizes = tensor.device_mesh.shape
    return any(size > 1 and how.is_replicate() for size, how in zip(sizes, tensor.placements, strict=True))


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """Return `value`, a whole tensor, distributed like `like`. Nothing is sent, because every rank has read it."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    part = value[box(like)].to(like.to_local().device, copy=True)  # a view would keep all of `value`
    return _with_part(part.contiguous(), like)


def whole_on(device: torch.device, tensor: DTensor) -> Tensor:
    """Return the whole tensor on that device of every rank; each rank sends its part from there."""
    return everywhere(_with_part(tensor.to_local().to(device), tensor))


def everywhere(tensor: DTensor) -> Tensor:
    """Return the whole tensor on every rank, gathered along one mesh dimension after the other, the last cut first."""
    how = list(tensor.placements)
    for dimension in range(len(how)):
        how[dimension] = Replicate()
        tensor = tensor.redistribute(placements=how)
    return tensor.to_local()


def _with_part(part: Tensor, like: DTensor) -> DTensor:
    how: dict[str, Any] = {"run_check": False, "shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(part, like.device_mesh, like.placements, **how)
