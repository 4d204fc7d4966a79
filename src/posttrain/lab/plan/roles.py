"""The memory that each role keeps from step to step: weights, optimizer moments, a copy for the sampler.

    policy        4 bytes per parameter: master weights are float32; with adapters they are frozen, those are beside,
                  and on a GPU the linear layers are in the run's precision (models.footprint.holds_base)
    reference     a frozen copy: linear layers in the run's precision, the rest 4 bytes (models.policy.hold_in); none
                  with adapters, whose base it is, and none where its numbers are on disk. A teacher is held likewise,
                  on a GPU also a reward model
    critic        separate: a second model without the head of a language model, trained; lora: a second set of
                  adapters; shared: a head of D + 1 numbers
    optimizer     two float32 moments per trained parameter (AdamW, arXiv:1711.05101); 8 bits: one byte each and a scale
                  for 256 (arXiv:2110.02861)

Sharding over N ranks divides, by stage (arXiv:1910.02054, arXiv:2304.11277): the moments; also the gradients; also the
weights, those of frozen models included. Hybrid sharding is the last of these over the ranks of one machine (mesh.py).
With `train.cpu_offload` all of that lies in main memory.
Where matrices are divided too, a workload is that of one rank of its tensor group (mesh.of_one_rank).
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
    """All that stays on one device between the steps; `sampling` says what it samples, where that is another thing."""
    models = [] if workload.cpu_offload else [*_policy(workload), *_others(workload)]
    return [*models, *_sampler(sampling or workload)]


def in_main_memory(workload: Workload) -> int:
    """Bytes of weights, gradients and moments that a rank keeps there in place of its device."""
    if not workload.cpu_offload:
        return 0
    models = sum(part.bytes for part in (*_policy(workload), *_others(workload)))
    return models + sum(gradients(replace(workload, cpu_offload=False)).values())


def trained_parameters(workload: Workload) -> dict[Role, int]:
    """Parameters that get a gradient, by role."""
    policy = workload.architecture
    trained: dict[Role, int] = {"policy": policy_parameters(workload)}
    if workload.lora is not None:
        trained["policy"] = policy.lora_parameters(workload.lora.rank, workload.lora.targets)
    if workload.critic != "none":
        trained["critic"] = critic_parameters(workload)
    return trained


def policy_parameters(workload: Workload) -> int:
    """Parameters of the trained model; one that scores has a head of one number."""
    a = workload.architecture
    return a.trunk_parameters + a.hidden if workload.scores else a.parameters


def critic_parameters(workload: Workload) -> int:
    """That belong to the critic alone."""
    if workload.critic == "separate":
        architecture = workload.critic_architecture or workload.architecture
        return architecture.trunk_parameters + architecture.hidden
    head = workload.architecture.hidden + 1
    targets = workload.lora.targets if workload.lora else None
    return head + (
        workload.architecture.lora_parameters(workload.critic_rank, targets) if workload.critic == "lora" else 0
    )


def gradients(workload: Workload) -> dict[Role, int]:
    """Bytes on the device once all are there: float32, divided from ZeRO's second stage on."""
    if workload.cpu_offload:
        return dict.fromkeys(trained_parameters(workload), 0)
    ranks = shard_group(workload).ranks if workload.sharding in ("gradients", "full", "hybrid") else 1
    return {role: MASTER * number // ranks for role, number in trained_parameters(workload).items()}


def has_reference(workload: Workload) -> bool:
    """A model of its own is in memory: of given data the numbers are on disk, and adapters have their base."""
    needed = "reference" in workload.needs and workload.data_kind == "prompts"
    return needed and (workload.reference is not None or workload.lora is None)


def weight_ranks(workload: Workload) -> int:
    """Among which weights are divided; 1: each has all."""
    return shard_group(workload).ranks if workload.sharding in ("full", "hybrid") else 1


def comes_together(workload: Workload) -> bool:
    """Whether FSDP copies weights to where a pass uses them, from however few ranks."""
    return workload.sharding in ("full", "hybrid") and workload.ranks > 1


def moment_bytes(workload: Workload, parameters: int) -> int:
    ranks = 1 if workload.sharding == "none" else shard_group(workload).ranks
    if workload.optimizer_bits == 32:
        return 2 * MASTER * parameters // ranks
    return 2 * (parameters + MASTER * parameters // EIGHT_BIT_BLOCK) // ranks


def _policy(workload: Workload) -> Iterator[Part]:
    trained, ranks = trained_parameters(workload), weight_ranks(workload)
    if workload.lora is not None and holds_base(workload.device):
        yield _frozen("policy", workload.architecture, workload, parameters=policy_parameters(workload))
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
        yield _frozen("reference", workload.reference or workload.architecture, workload)
    if "teacher" in workload.needs and workload.teacher is not None:
        yield _frozen("teacher", workload.teacher, workload)
    for model in workload.reward_models:
        number = model.trunk_parameters + model.hidden
        if holds_base(workload.device):
            yield _frozen("reward model", model, workload, parameters=number)
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
    """Packed, a head that is the embedding is held twice: products read one layout, the embedding the other."""
    a = workload.architecture
    twice = a.vocabulary * a.hidden if workload.packed_sampler and a.tied else 0
    return BYTES[workload.precision] * (a.parameters + twice)


def _weights(role: Role, parameters: int, ranks: int, why: str) -> Part:
    size = MASTER * parameters // ranks
    return Part(role=role, what="weights", bytes=size, why=f"{parameters:,} parameters, {why}", stays=True)


def _frozen(role: Role, model: Architecture, workload: Workload, *, parameters: int | None = None) -> Part:
    """`parameters`: where the model has another head than that of a language model."""
    linear = _matrices(model)
    whole = model.parameters if parameters is None else parameters
    size = BYTES[workload.precision] * linear + MASTER * (whole - linear)
    why = f"{whole:,} parameters, frozen, linear layers in {workload.precision}"
    return Part(role=role, what="weights", bytes=size // weight_ranks(workload), why=why, stays=True)


def frozen_scorers(workload: Workload) -> list[tuple[Role, Architecture]]:
    """Models beside the policy that score the trained tokens without gradient."""
    found: list[tuple[Role, Architecture]] = []
    if "reference" in workload.needs and workload.data_kind == "prompts":
        found.append(("reference", workload.reference or workload.architecture))
    if "teacher" in workload.needs and workload.teacher is not None:
        found.append(("teacher", workload.teacher))
    return found


def engine_weights(workload: Workload) -> int:
    """On each device of an engine of its own, which divides them, in the precision in which it decodes."""
    return BYTES[workload.precision] * workload.architecture.parameters // engine_group(workload).ranks


# --- what is divided comes together for a moment ---------------------------------------------------------------------


def gathered(workload: Workload) -> list[Part]:
    """Weights that are divided come together layer by layer: the one that computes and the one that is fetched
    meanwhile (arXiv:2304.11277); what is outside of layers is gathered once for a whole pass, as FSDP2 does for the
    root."""
    if not comes_together(workload):
        return []
    a = workload.architecture
    size = 2 * gathered_layer(workload, a, frozen=workload.lora is not None) + gathered_root(workload, a)
    return [Part(role="policy", what="gathered layers", bytes=size, why="two layers, and what is outside of layers")]


def gathered_layer(workload: Workload, model: Architecture, *, frozen: bool) -> int:
    """Bytes of one gathered layer, with its adapters; 0 without FSDP."""
    if not comes_together(workload):
        return 0
    adapters = MASTER * _adapters(workload, model) // model.layers if frozen else 0
    return layer_bytes(workload, model, narrow=frozen and holds_base(workload.device)) + adapters


def gathered_root(workload: Workload, model: Architecture) -> int:
    """The same of what is outside of layers."""
    return root_bytes(workload, model) if comes_together(workload) else 0


def layer_bytes(workload: Workload, model: Architecture, *, narrow: bool) -> int:
    """Of one layer on its way to a pass: as it lies, unless `gathered` says another precision. `narrow`: its matrices
    lie in the precision of products, as those of frozen models do (models.policy.hold_in)."""
    if workload.gathered is not None:
        return BYTES[workload.gathered] * layer_parameters(model)
    matrices = _matrices(model) // model.layers if narrow else 0
    return BYTES[workload.precision] * matrices + MASTER * (layer_parameters(model) - matrices)


def root_bytes(workload: Workload, model: Architecture) -> int:
    """The same of what is outside of layers, which lies in float32."""
    return (MASTER if workload.gathered is None else BYTES[workload.gathered]) * root_parameters(model)


def _matrices(model: Architecture) -> int:
    """Parameters of linear layers but the head."""
    return sum(number * layer.parameters for number, block in model.blocks for layer in block.linears)


def _adapters(workload: Workload, model: Architecture) -> int:
    """Parameters of all adapters on the policy, a critic's among them; other models have none."""
    if workload.lora is None or model is not workload.architecture:
        return 0
    ranks = workload.lora.rank + (workload.critic_rank if workload.critic == "lora" else 0)
    return model.lora_parameters(ranks, workload.lora.targets)


def layer_to_sum(workload: Workload, model: Architecture) -> int:
    """The gradient of a layer as its backward pass leaves it, and beside it in the precision in which it is summed."""
    if not _sums(workload):
        return 0
    return layer_bytes(workload, model, narrow=False) + BYTES[workload.reduced] * layer_parameters(model)


def root_to_sum(workload: Workload, model: Architecture) -> int:
    """The same of what is outside of layers, beside the gradients of the tables themselves."""
    return BYTES[workload.reduced] * root_parameters(model) // model.neighbours if _sums(workload) else 0


def _sums(workload: Workload) -> bool:
    """Whether whole gradients are there for a moment, to be divided; those of adapters are too small to be counted."""
    return comes_together(workload) and workload.lora is None


def layer_parameters(model: Architecture) -> int:
    """Parameters of one layer, on average."""
    counts = model.counts
    return (counts.total - counts.embeddings - counts.head) // model.layers


def root_parameters(model: Architecture) -> int:
    """Outside of layers: embeddings and head, all of them."""
    return model.neighbours * (model.counts.embeddings + model.counts.head)
