"""The communication between the ranks of a run in a step, and the part that they wait for.

With sharded weights (FSDP2, arXiv:2304.11277), each micro-batch has, per rank:

    forward     all-gather of the root (embeddings and head) and of each layer, as stored (models/footprint.py)
    backward    all-gather of each layer again; reduce-scatter of the gradient of each layer and of the root, in float32
                unless `reduced` sets a lower precision
    hybrid      the same inside a machine, then all-reduce of each sum between the machines

A pass without gradient, and a pass of the sampler, has only the forward part. While a layer computes, the next layer is
gathered, and the gradient of the previous one summed. Ranks wait for the root and the first layer before they can
compute, and for the summed gradients of the first layer and the root before the optimizer step.

With sharded gradients (ZeRO's stage 2, arXiv:1910.02054), each backward pass scatters them while it computes, and ranks
wait for the gathered updated weights. With sharded moments, or without sharding, gradients are summed once per update,
and ranks wait for that.

With divided matrices (arXiv:1909.08053), the outputs of attention and MLP of each layer are summed in a forward pass,
and again if a layer is recomputed. A backward pass sums the gradients of their inputs. The next operation needs each
sum, so ranks wait for all. Embedding and head are gathered from neighbours for a pass, as from other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.collectives import Collective, told
from posttrain.lab.plan.layout import Step
from posttrain.lab.plan.mesh import Group, copies, data_group, engine_group, part_of, shard_group, tensor_group
from posttrain.lab.plan.records import BYTES, Workload
from posttrain.lab.plan.roles import MASTER, layer_bytes, layer_parameters, root_bytes
from posttrain.models.footprint import holds_base

Messages = tuple[Collective, ...]


def of_scoring(workload: Workload, model: Architecture, step: Step, *, narrow: bool) -> Messages:
    """Return the messages of a pass without gradient over one rank's rows. `narrow` is as in `roles.layer_bytes`."""
    w, passes = workload, step.microbatches
    sums = sums_of_layers(w, model, step.computed_tokens, passes, tensor_group(w))
    return (*gathering(w, part_of(model, w.tensor), passes, narrow=narrow), *sums)


def of_updates(workload: Workload, model: Architecture, step: Step, *, trained: int, frozen: bool) -> Messages:
    """Return the messages of all updates of a step. `trained` is the number of parameters with a gradient in this
    rank's part: those of adapters if the model is `frozen`, otherwise all, perhaps without the head."""
    w, part, passes = workload, part_of(model, workload.tensor), step.epochs * step.microbatches
    found = list[Collective]()
    if w.sharding in ("full", "hybrid"):
        narrow = frozen and holds_base(w.device)
        found += gathering(w, part, passes, narrow=narrow)
        found += _of_layers(w, part, passes, narrow=narrow)  # for backward passes; the root is still gathered
        found += (_scattered_adapters if frozen else _scattered)(w, part, passes, trained)
    elif w.sharding == "gradients":
        group, each = data_group(w), MASTER * trained / part.layers
        found += told("reduce-scatter", each, group, passes * part.layers, hidden=True)
        found += told("all-gather", each, group, step.updates * part.layers)
    else:
        found += told("all-reduce", MASTER * trained / part.layers, data_group(w), step.updates * part.layers)
    rounds = 3 if w.gradient_checkpointing else 2
    tokens = step.epochs * step.computed_tokens
    found += sums_of_layers(w, model, tokens, passes, tensor_group(w), rounds=rounds)
    return tuple(found)


def gathering(workload: Workload, part: Architecture, passes: float, *, narrow: bool) -> Messages:
    """Return the messages to gather sharded weights for `passes` forward passes."""
    if workload.sharding not in ("full", "hybrid"):
        return ()
    root = root_bytes(workload, part)
    return (
        *told("all-gather", root / part.neighbours, shard_group(workload), passes),
        *told("all-gather", root, tensor_group(workload), passes),
        *_of_layers(workload, part, passes, narrow=narrow),
    )


def sums_of_layers(
    workload: Workload,
    model: Architecture,
    tokens: float,
    passes: float,
    group: Group,
    *,
    rounds: int = 1,
    embedded: bool = False,
) -> Messages:
    """Return the sums for divided matrices, over `tokens` in `passes`: two outputs of each layer, `rounds` times. With
    `embedded`, also the embedded tokens, for an engine that divides the vocabulary."""
    layers = _sum(workload, model, tokens, passes, group)
    return tuple(one * (2 * rounds * model.layers + embedded) for one in layers)


def of_publishing(workload: Workload, model: Architecture) -> Messages:
    """Return the messages that publish the weights to the sampler: sharded ones are gathered as stored, or all are sent
    to the engine's devices in its decoding precision."""
    w = workload
    if w.engine == "separate":
        engine = engine_group(w)
        machines = -(-(w.ranks + w.engine_ranks) // w.node)
        return told("send", BYTES[w.precision] * model.parameters / engine.ranks, Group(2, 2 if machines == 1 else 1))
    narrow = w.lora is not None and holds_base(w.device)
    whole = model.layers * layer_bytes(w, model, narrow=narrow) + root_bytes(w, model)
    return told("all-gather", whole / w.tensor, shard_group(w)) if w.sharding in ("full", "hybrid") else ()


def _of_layers(workload: Workload, part: Architecture, passes: float, *, narrow: bool) -> Messages:
    layer, group = layer_bytes(workload, part, narrow=narrow), shard_group(workload)
    return (
        *told("all-gather", layer, group, passes),
        *told("all-gather", layer, group, passes * (part.layers - 1), hidden=True),
    )


def _scattered(workload: Workload, part: Architecture, passes: float, trained: int) -> Iterator[Collective]:
    """Yield the sums of gradients over ranks, and with hybrid sharding the sums of shards over groups."""
    each, group, others = BYTES[workload.reduced], shard_group(workload), copies(workload)
    root = max(0, trained - part.layers * layer_parameters(part))
    for parameters, times, hidden in (
        (layer_parameters(part), passes * (part.layers - 1), True),
        (layer_parameters(part), passes, False),
        (root, passes, False),
    ):
        yield from told("reduce-scatter", each * parameters, group, times, hidden=hidden)
        yield from told("all-reduce", each * parameters / group.ranks, others, times, hidden=hidden)


def _scattered_adapters(workload: Workload, part: Architecture, passes: float, trained: int) -> Iterator[Collective]:
    group, each = shard_group(workload), BYTES[workload.reduced] * trained / part.layers
    yield from told("reduce-scatter", each, group, passes * part.layers, hidden=True)
    yield from told("all-reduce", each / group.ranks, copies(workload), passes * part.layers, hidden=True)


def _sum(workload: Workload, model: Architecture, tokens: float, passes: float, group: Group) -> Messages:
    """Return the sum of one hidden state per token."""
    if not passes:
        return ()
    return told("all-reduce", tokens / passes * model.hidden * BYTES[workload.precision], group, passes)
