"""The memory that each role keeps from step to step: weights, optimizer moments, a copy for the sampler.

    policy        4 bytes per parameter: master weights are float32. With adapters they are frozen, adapters come on
                  top, and on a GPU the linear layers are in the run's precision (models.footprint.holds_base)
    reference     a frozen copy: linear layers in the run's precision, the rest 4 bytes (models.policy.hold_in). None
                  with adapters, because it is their base. For given data its numbers are on disk, and only ranks of
                  which each holds a part keep the model. A teacher is held in the same way, on a GPU also a reward
                  model
    critic        separate: a second model without the head of a language model, trained; lora: a second set of
                  adapters; shared: a head with D + 1 numbers
    optimizer     two float32 moments per trained parameter (AdamW, arXiv:1711.05101); 8 bits: one byte each and a scale
                  for 256 (arXiv:2110.02861)

Sharding over N ranks divides, by stage (arXiv:1910.02054, arXiv:2304.11277): 1 the moments; 2 also the gradients; 3
also the weights, including those of frozen models. Hybrid sharding is stage 3 over the ranks of one machine (mesh.py).
With `train.cpu_offload` all of these are in main memory.
If matrices are divided too, the workload describes one rank of its tensor group (mesh.of_one_rank).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.mesh import engine_group, shard_group
from posttrain.lab.plan.records import BYTES, Part, Role, Workload
from posttrain.models.footprint import EIGHT_BIT_BLOCK, holds_base

MASTER = 4


def resident(workload: Workload, sampling: Workload | None = None) -> list[Part]:
    """Return the parts that stay on one device between steps. `sampling` is the sampler's workload, if it differs."""
    models = [] if workload.cpu_offload else [*_policy(workload), *_others(workload)]
    return [*models, *_sampler(sampling or workload)]


def in_main_memory(workload: Workload) -> int:
    """Return the bytes of weights, gradients and moments that a rank keeps in main memory instead of on its device."""
    if not workload.cpu_offload:
        return 0
    models = sum(part.bytes for part in (*_policy(workload), *_others(workload)))
    return models + sum(gradients(replace(workload, cpu_offload=False)).values())


def trained_parameters(workload: Workload) -> dict[Role, int]:
    """Return the number of parameters with a gradient, by role."""
    policy = workload.architecture
    trained: dict[Role, int] = {"policy": policy_parameters(workload)}
    if workload.lora is not None:
        trained["policy"] = policy.lora_parameters(workload.lora.rank, workload.lora.targets)
    if workload.critic != "none":
        trained["critic"] = critic_parameters(workload)
    return trained


def policy_parameters(workload: Workload) -> int:
    """Return the parameters of the trained model. A scoring model has a head with one output."""
    a = workload.architecture
    return a.trunk_parameters + a.hidden if workload.scores else a.parameters


def critic_parameters(workload: Workload) -> int:
    """Return the parameters that belong only to the critic."""
    if workload.critic == "separate":
        architecture = workload.critic_architecture or workload.architecture
        return architecture.trunk_parameters + architecture.hidden
    head = workload.architecture.hidden + 1
    targets = workload.lora.targets if workload.lora else None
    return head + (
        workload.architecture.lora_parameters(workload.critic_rank, targets) if workload.critic == "lora" else 0
    )


def gradients(workload: Workload) -> dict[Role, int]:
    """Return the bytes of all gradients on the device: float32, sharded from ZeRO's stage 2 on."""
    if workload.cpu_offload:
        return dict.fromkeys(trained_parameters(workload), 0)
    ranks = shard_group(workload).ranks if workload.sharding in ("gradients", "full", "hybrid") else 1
    return {role: MASTER * number // ranks for role, number in trained_parameters(workload).items()}


def has_reference(workload: Workload) -> bool:
    """Does a separate reference stay in memory? For adapters it is their base. For given data its numbers are on disk,
    but a sharded model lives as long as its ranks (models.entering)."""
    if "reference" not in workload.needs:
        return False
    if workload.data_kind == "prompts":
        return workload.reference is not None or workload.lora is None
    return workload.reference is not None and workload.ranks + workload.rank_processes > 1


def weight_ranks(workload: Workload) -> int:
    """Return the number of ranks that shard the weights. 1 means that each rank has all weights."""
    return shard_group(workload).ranks if workload.sharding in ("full", "hybrid") else 1


def comes_together(workload: Workload) -> bool:
    """Does FSDP gather the weights for each pass? It copies them even if a shard group has one rank."""
    return workload.sharding in ("full", "hybrid") and workload.ranks > 1


def moment_bytes(workload: Workload, parameters: int) -> int:
    ranks = 1 if workload.sharding == "none" else shard_group(workload).ranks
    if workload.optimizer_bits == 32:
        return 2 * MASTER * parameters // ranks
    return 2 * (parameters + MASTER * parameters // EIGHT_BIT_BLOCK) // ranks


def _policy(workload: Workload) -> Iterator[Part]:
    trained, ranks = trained_parameters(workload), weight_ranks(workload)
    if workload.lora is not None and holds_base(workload.device):
        yield frozen("policy", workload.architecture, workload, parameters=policy_parameters(workload))
    else:
        yield _weights("policy", policy_parameters(workload), ranks, "master weights in float32")
    if workload.lora is not None:
        rank = f"rank {workload.lora.rank}"
        yield Part(role="policy", what="adapters", bytes=MASTER * trained["policy"] // ranks, why=rank, stays=True)
    for role, number in trained.items():
        if role == "critic":
            yield _weights("critic", number, ranks, f"{workload.critic} critic in float32")
        yield Part(
            role=role,
            what="optimizer state",
            bytes=moment_bytes(workload, number),
            why=f"two moments of {number:,} parameters in {workload.optimizer_bits} bits",
            stays=True,
        )


def _others(workload: Workload) -> Iterator[Part]:
    ranks = weight_ranks(workload)
    if has_reference(workload):
        yield frozen("reference", workload.reference or workload.architecture, workload)
    if "teacher" in workload.needs and workload.teacher is not None:
        yield frozen("teacher", workload.teacher, workload)
    for model in workload.reward_models:
        number = model.trunk_parameters + model.hidden
        if holds_base(workload.device):
            yield frozen("reward model", model, workload, parameters=number)
        else:
            yield _weights("reward model", number, ranks, "frozen, in float32")


def _sampler(workload: Workload) -> Iterator[Part]:
    if workload.data_kind == "prompts" and workload.engine == "copy":
        yield Part(
            role="sampler",
            what="copy of the weights",
            bytes=sampler_copy(workload),
            why=f"in {workload.precision}{', packed' if workload.packed_sampler else ''}",
            stays=True,
        )


def sampler_copy(workload: Workload) -> int:
    """Return the bytes of the sampler's copy. If packed, a tied head exists twice: packed, and plain as embedding."""
    a = workload.architecture
    twice = a.vocabulary * a.hidden if workload.packed_sampler and a.tied else 0
    return BYTES[workload.precision] * (a.parameters + twice)


def _weights(role: Role, parameters: int, ranks: int, why: str) -> Part:
    size = MASTER * parameters // ranks
    return Part(role=role, what="weights", bytes=size, why=f"{parameters:,} parameters, {why}", stays=True)


def frozen(role: Role, model: Architecture, workload: Workload, *, parameters: int | None = None) -> Part:
    """Return the weights of a frozen model. `parameters` is given if its head is not a language model's."""
    linear = _matrices(model)
    whole = model.parameters if parameters is None else parameters
    size = BYTES[workload.precision] * linear + MASTER * (whole - linear)
    why = f"{whole:,} parameters, frozen, linear layers in {workload.precision}"
    return Part(role=role, what="weights", bytes=size // weight_ranks(workload), why=why, stays=True)


def frozen_scorers(workload: Workload) -> list[tuple[Role, Architecture]]:
    """Return the models other than the policy that score the trained tokens, without gradient."""
    found: list[tuple[Role, Architecture]] = []
    if "reference" in workload.needs and workload.data_kind == "prompts":
        found.append(("reference", workload.reference or workload.architecture))
    if "teacher" in workload.needs and workload.teacher is not None:
        found.append(("teacher", workload.teacher))
    return found


def engine_weights(workload: Workload) -> int:
    """Return the bytes of weights on each device of a separate engine, in its decoding precision."""
    return BYTES[workload.precision] * workload.architecture.parameters // engine_group(workload).ranks


# --- gathered weights ------------------------------------------------------------------------------------------------


def gathered(workload: Workload) -> list[Part]:
    """Return the gathered weights. Sharded weights are gathered layer by layer: the computing layer and the prefetched
    one (arXiv:2304.11277). Weights outside of layers are gathered once for a whole pass, as FSDP2 does for the root
    module."""
    if not comes_together(workload):
        return []
    a = workload.architecture
    size = 2 * gathered_layer(workload, a, frozen=workload.lora is not None) + gathered_root(workload, a)
    return [Part(role="policy", what="gathered layers", bytes=size, why="two layers, and what is outside of layers")]


def gathered_layer(workload: Workload, model: Architecture, *, frozen: bool) -> int:
    """Return the bytes of one gathered layer with its adapters. 0 without FSDP."""
    if not comes_together(workload):
        return 0
    adapters = MASTER * _adapters(workload, model) // model.layers if frozen else 0
    return layer_bytes(workload, model, narrow=frozen and holds_base(workload.device)) + adapters


def gathered_root(workload: Workload, model: Architecture) -> int:
    """Return the bytes of the gathered weights outside of layers. 0 without FSDP."""
    return root_bytes(workload, model) if comes_together(workload) else 0


def layer_bytes(workload: Workload, model: Architecture, *, narrow: bool) -> int:
    """Return the bytes of one layer as gathered: as stored, unless `gathered` sets the precision. `narrow`: its
    matrices are stored in the precision of products, as those of frozen models are (models.policy.hold_in)."""
    if workload.gathered is not None:
        return BYTES[workload.gathered] * layer_parameters(model)
    matrices = _matrices(model) // model.layers if narrow else 0
    return BYTES[workload.precision] * matrices + MASTER * (layer_parameters(model) - matrices)


def root_bytes(workload: Workload, model: Architecture) -> int:
    """Return the gathered bytes of the weights outside of layers, which are stored in float32."""
    return (MASTER if workload.gathered is None else BYTES[workload.gathered]) * root_parameters(model)


def _matrices(model: Architecture) -> int:
    """Return the parameters of linear layers except the head."""
    return sum(number * layer.parameters for number, block in model.blocks for layer in block.linears)


def _adapters(workload: Workload, model: Architecture) -> int:
    """Return the parameters of all adapters on the policy, including a critic's. Other models have none."""
    if workload.lora is None or model is not workload.architecture:
        return 0
    ranks = workload.lora.rank + (workload.critic_rank if workload.critic == "lora" else 0)
    return model.lora_parameters(ranks, workload.lora.targets)


def layer_to_sum(workload: Workload, model: Architecture) -> int:
    """Return the bytes of a layer's gradient, both as computed and in the precision of the sum."""
    if not _sums(workload):
        return 0
    return layer_bytes(workload, model, narrow=False) + BYTES[workload.reduced] * layer_parameters(model)


def root_to_sum(workload: Workload, model: Architecture) -> int:
    """Return the bytes of the gradients to sum outside of layers, in addition to the tables' own gradients."""
    return BYTES[workload.reduced] * root_parameters(model) // model.neighbours if _sums(workload) else 0


def _sums(workload: Workload) -> bool:
    """Do full gradients exist for a moment before they are sharded? Those of adapters are too small to count."""
    return comes_together(workload) and workload.lora is None


def layer_parameters(model: Architecture) -> int:
    """Return the mean number of parameters of a layer."""
    counts = model.counts
    return (counts.total - counts.embeddings - counts.head) // model.layers


def root_parameters(model: Architecture) -> int:
    """Return the number of all parameters outside of layers: embeddings and head."""
    return model.neighbours * (model.counts.embeddings + model.counts.head)
