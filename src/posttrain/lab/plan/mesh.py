"""The groups of a run's ranks: ranks that divide matrices, ranks that shard weights, and ranks that hold replicas.

Neighbours on one machine divide matrices (`tensor`). The tensor groups of all machines divide the rows. With t ranks
per tensor group, a machine of g devices has g / t ranks of every group that spans machines:

    full       weights, gradients and moments are sharded over all ranks with different rows
    hybrid     the same over groups of neighbours: those of one machine, or `shard` many; each group holds a full
               replica (FSDP's HSDP, arXiv:2304.11277)
    gradients, optimizer, none     ZeRO's stages 2, 1 and 0 over all of these ranks (arXiv:1910.02054)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from posttrain.errors import ConfigError
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.shape import Architecture, Block, Linear
from posttrain.models.division import Sizes, refusal


@dataclass(frozen=True)
class Group:
    """The ranks of one collective, spread evenly over machines."""

    ranks: int
    inside: int
    """Ranks of the group on one machine."""

    @property
    def machines(self) -> int:
        return ceil(self.ranks / self.inside)


def tensor_group(workload: Workload) -> Group:
    """Return the ranks that divide matrices and compute the same rows."""
    return Group(workload.tensor, workload.tensor)


def data_group(workload: Workload) -> Group:
    """Return the group with one rank of every tensor group. Its ranks have different rows."""
    ranks = workload.ranks // workload.tensor
    return Group(ranks, min(ranks, _of_a_machine(workload)))


def shard_group(workload: Workload) -> Group:
    """Return the ranks over which weights, gradients or moments are sharded."""
    data = data_group(workload)
    if workload.sharding != "hybrid":
        return data
    ranks = workload.shard or data.inside
    return Group(ranks, min(ranks, data.inside))


def copies(workload: Workload) -> Group:
    """Return the ranks with the same shard: one of each group with hybrid sharding, otherwise a single rank."""
    if workload.sharding != "hybrid":
        return Group(1, 1)
    data, group = data_group(workload), shard_group(workload)
    number = data.ranks // group.ranks
    return Group(number, min(number, max(1, data.inside // group.ranks)))


def engine_group(workload: Workload) -> Group:
    """Return the devices of one separate engine, which divide its matrices: at most those of a machine."""
    ranks = workload.engine_tensor or min(workload.engine_ranks, workload.node)
    return Group(ranks, ranks)


def engines(workload: Workload) -> int:
    """Return the number of separate engines."""
    return workload.engine_ranks // engine_group(workload).ranks


def samplers(workload: Workload) -> int:
    """Return the number of samplers. Each has its own prompts."""
    if workload.engine == "separate":
        return engines(workload)
    return workload.samplers or data_group(workload).ranks


def check_groups(workload: Workload) -> None:
    """Raise ConfigError if the ranks cannot form these groups."""
    ranks, tensor, node = workload.ranks, workload.tensor, workload.node
    if tensor > min(ranks, node) or ranks % tensor or node % tensor:
        raise ConfigError(
            given=f"train.tensor = {tensor} (--tensor) for {ranks} devices, {node} in a machine",
            allowed="a divisor of both, because matrices are divided inside a machine",
            fix="For example, set train.tensor = 1, which divides no matrices.",
        )
    if workload.sharding == "hybrid" and workload.shard is None and (ranks % node or ranks == node):
        raise ConfigError(
            given=f"sharding = hybrid (--sharding) for {ranks} devices, {node} in a machine",
            allowed="two or more whole machines, because each holds all weights",
            fix=f"Set --sharding full, or use {2 * node} devices.",
        )
    if workload.sharding == "hybrid" and data_group(workload).ranks % shard_group(workload).ranks:
        shared, groups = workload.shard, data_group(workload).ranks
        divided = "" if tensor == 1 else f", of which {tensor} each divide matrices (--tensor): {groups} groups"
        without = "" if tensor == 1 or ranks % (shared or 1) else ", or omit --tensor"
        raise ConfigError(
            given=f"train.shard = {shared} for {ranks} devices{divided}",
            allowed=f"a divisor of {groups}",
            fix=f"Set train.shard = auto{without}.",
        )
    if workload.engine == "separate" and workload.engine_ranks % engine_group(workload).ranks:
        raise ConfigError(
            given=f"{workload.engine_ranks} devices of engines (--engine-gpus), {engine_group(workload).ranks} each",
            allowed="whole engines",
            fix=f"Set --engine-gpus to a multiple, or --engine-tensor to a divisor of {workload.engine_ranks}.",
        )


def _of_a_machine(workload: Workload) -> int:
    """Return the number of tensor groups per machine."""
    return max(1, workload.node // workload.tensor)


# --- divided matrices ------------------------------------------------------------------------------------------------


NARROWED = {"q": "outputs", "k": "outputs", "v": "outputs", "gate": "outputs", "up": "outputs", "o": "inputs",
            "down": "inputs"}  # fmt: skip
"""Matrix -> the side on which it is divided (arXiv:1909.08053): outputs, then inputs, and one sum after each pair."""


def of_one_rank(workload: Workload) -> Workload:
    """Return the workload of one rank of a tensor group: narrower models, and one rank per tensor group."""
    t = workload.tensor
    if t == 1:
        return workload

    def narrowed(model: Architecture | None) -> Architecture | None:
        return None if model is None else part_of(model, t)

    return replace(
        workload,
        architecture=part_of(workload.architecture, t),
        critic_architecture=narrowed(workload.critic_architecture),
        reference=narrowed(workload.reference),
        teacher=narrowed(workload.teacher),
        ranks=workload.ranks // t,
        node=workload.node // t,
        tensor=1,
    )


def part_of(model: Architecture, ranks: int) -> Architecture:
    """Return the part of the model that one of `ranks` ranks computes: some heads, and a part of each MLP. Each rank
    computes full hidden states, norms and head; embedding and head are stored in parts (models/matrices.py).

    Raises ConfigError for a model that cannot be divided in this way.
    """
    if ranks == 1:
        return model
    sizes = Sizes(
        kind=model.kind, heads=model.heads, kv_heads=model.kv_heads, mlp_width=model.mlp_width, hidden=model.hidden
    )
    if (error := refusal(sizes, ranks, given=f"train.tensor = {ranks} (--tensor), {model.name}")) is not None:
        raise error
    return replace(
        model,
        heads=model.heads // ranks,
        kv_heads=model.kv_heads // ranks,
        mlp_width=model.mlp_width // ranks,
        neighbours=ranks,
        blocks=tuple((number, _part_of(block, ranks)) for number, block in model.blocks),
    )


def _part_of(block: Block, ranks: int) -> Block:
    attention, mlp = (tuple(_narrowed(linear, ranks) for linear in part) for part in (block.attention, block.mlp))
    return replace(block, attention=attention, mlp=mlp)


def _narrowed(linear: Linear, ranks: int) -> Linear:
    side = NARROWED[linear.name]
    return linear._replace(**{side: getattr(linear, side) // ranks})
