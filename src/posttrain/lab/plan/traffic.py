"""The traffic between the ranks of a run in a step, and the part of it that they wait for.

With the weights divided (FSDP2, arXiv:2304.11277), of L layers, each micro-batch has, per rank:

    forward     all-gather of the root (embeddings and head) and of each layer, as they lie (models/footprint.py)
    backward    all-gather of each layer again; reduce-scatter of the gradient of each layer and of the root, in float32
                unless `reduced` says less
    hybrid      the same inside a machine, then all-reduce of each sum among the machines

A pass without gradient has its forward part, a pass of the sampler too. The next layer is gathered, and the gradient of
the last one summed, while a layer computes. Nobody can compute before the root and the first layer are there, nor take
an optimizer step before the gradients of the first layer and the root are summed: those are waited for.

With gradients divided (ZeRO's second stage, arXiv:1910.02054) each backward pass scatters them meanwhile, and the
updated weights are gathered and waited for. With moments divided, or nothing, gradients are summed once per update and
waited for.

With matrices divided (arXiv:1909.08053) the outputs of attention and of the MLP of each layer are summed, in a forward
pass, and again where a layer is recomputed; the gradients of their inputs in a backward pass. The next operation needs
each of these sums: all are waited for. Embedding and head are gathered from neighbours for a pass, as from others.
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
    """Of a pass without gradient over all rows of one rank; `narrow` as in `roles.layer_bytes`."""
    w, passes = workload, step.microbatches
    sums = sums_of_layers(w, model, step.computed_tokens, passes, tensor_group(w))
    return (*gathering(w, part_of(model, w.tensor), passes, narrow=narrow), *sums)


def of_updates(workload: Workload, model: Architecture, step: Step, *, trained: int, frozen: bool) -> Messages:
    """Of all updates of a step; `trained` parameters of this rank's part get a gradient: those of adapters where the
    model is `frozen`, else all but perhaps its head."""
    w, part, passes = workload, part_of(model, workload.tensor), step.epochs * step.microbatches
    found = list[Collective]()
    if w.sharding in ("full", "hybrid"):
        narrow = frozen and holds_base(w.device)
        found += gathering(w, part, passes, narrow=narrow)
        found += _of_layers(w, part, passes, narrow=narrow)  # for backward passes; the root is still there
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
    """Divided weights come together for so many forward passes."""
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
    """Of divided matrices, over so many tokens in so many passes: two outputs of each layer, `rounds` times. With
    `embedded` the embedded tokens, too, as where an engine divides the vocabulary."""
    layers = _sum(workload, model, tokens, passes, group)
    return tuple(one * (2 * rounds * model.layers + embedded) for one in layers)


def of_publishing(workload: Workload, model: Architecture) -> Messages:
    """The trained weights on their way to the sampler: gathered as they lie where they are divided, or sent to its
    devices in the precision in which it decodes."""
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
    """Sums of gradients, each rank's part of them, and with hybrid sharding the sums of these over machines."""
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
    """Of one hidden state per token."""
    if not passes:
        return ()
    return told("all-reduce", tokens / passes * model.hidden * BYTES[workload.precision], group, passes)
