"""The moments of an update at which memory may peak: the beginning and the end of the backward pass, and the step.

The backward pass goes through the models in reverse: first a separate critic, then the policy. In each it goes through
the head, the layers from last to first, and the embedding. Activations shrink while gradients grow, evenly from layer
to layer, so the peak is at one of the ends. From the second micro-batch on, all gradients already exist. On a CPU they
exist from the first gradient on, which allocates all (train/optimizer.py).

Sharded weights (FSDP2) need these bytes in addition to the shards, with R the weights outside of layers and L a layer:

    R + L     in the head: a layer is prefetched
    2 R       at the beginning of the backward pass: R was freed after the forward pass and is gathered again, then
              copied to its place of use
    R + 3 L   when the last layer is gathered: the received data, their copy, and the prefetched previous layer
    R + 2 L   in a layer, and while its gradient is summed over the ranks; the sum needs two more copies: the gradient
              as computed and as sent

Gradients of sharded weights are summed layer by layer, so that only a shard of each stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from posttrain.lab.plan.activations import Head, Pass
from posttrain.lab.plan.layout import Layout, microbatches
from posttrain.lab.plan.records import Moment, Part, Role, Workload, part, records
from posttrain.lab.plan.roles import (
    comes_together,
    gathered_layer,
    gathered_root,
    gradients,
    layer_to_sum,
    root_to_sum,
)
from posttrain.models.footprint import EIGHT_BIT_TEMPORARIES

WIDE = 4


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model's pass in an update."""

    role: Role
    body: Pass
    head: Head | None
    """None for a model without a language-model head."""
    checkpointing: bool

    @property
    def saved(self) -> int:
        return self.body.checkpointed if self.checkpointing else self.body.saved

    @property
    def cached_casts(self) -> int:
        """Bytes of cached casts during the pass. Without checkpointing, `saved` includes them."""
        return self.body.cached_casts if self.checkpointing else 0

    @property
    def last_layer(self) -> int:
        """Temporary bytes in the last layer's backward pass. With checkpointing, its saved tensors are recomputed."""
        again = self.body.saved_by(self.body.architecture.blocks[-1][1]) if self.checkpointing else 0
        return again + self.body.backward_moment

    @property
    def first_layer(self) -> int:
        """Bytes still in use when the backward pass reaches the first layer."""
        return self.body.around + self.body.saved_by(self.body.architecture.blocks[0][1]) + self.body.backward_moment

    @property
    def table(self) -> int:
        """Bytes of the dense gradient of a trained embedding, also of a tied one."""
        a = self.body.architecture
        return self._gradient * a.vocabulary * a.hidden if self.body.trained else 0

    @property
    def waiting(self) -> int:
        """Bytes of a trained head's gradient after its backward pass; if tied, until it joins the embedding's."""
        return self.head.weight_gradient * self._gradient // WIDE if self.head else 0

    @property
    def _gradient(self) -> int:
        """Bytes per number of a gradient. For weights gathered already cast, it has their precision."""
        return self.body.narrow if self.body.cast_before else WIDE


def training_moments(workload: Workload) -> Iterator[Moment]:
    layout, number = microbatches(workload)
    divided = comes_together(workload)
    passes, whole = trained_passes(workload, layout), gradients(workload)
    always = (records(workload),)
    in_block = workload.device == "cpu" and not divided
    begun = number > 1 or (in_block and workload.critic == "shared")  # its own weights get gradients before the head
    ready: dict[Role, int] = {role: size if begun else 0 for role, size in whole.items()}
    for place in reversed(range(len(passes))):
        one, others = passes[place], [*_alive(passes[:place]), *always]
        if one.head is not None:
            yield from _in_head(workload, one, ready, others)
        ready = dict(whole) if in_block else ready
        if divided:
            yield from _in_divided_layers(workload, one, ready, others)
            ready[one.role] = whole[one.role]
        else:
            after: dict[Role, int] = {**ready, one.role: whole[one.role]}
            collected = one.waiting if in_block or number > 1 else 0  # otherwise it becomes the gradient itself
            yield from _in_layers(one, ready, after, collected, others)
            ready = after
    yield Moment(name="optimizer step", parts=(*_gradients(whole), *_of_a_step(workload), *always))


def _in_head(workload: Workload, one: Trained, ready: Mapping[Role, int], others: list[Part]) -> Iterator[Moment]:
    assert one.head is not None, "the caller has looked"
    a = one.body.architecture
    root, layer = gathered_root(workload, a), gathered_layer(workload, a, frozen=not one.body.trained)
    kept = (
        *_gradients(ready),
        part(one.role, "activations", one.saved),
        part(one.role, "logits", one.head.kept),
        *others,
    )
    together = part(one.role, "gathered layers", root + layer)
    inside = part(one.role, "temporaries", one.head.trained_forward + one.cached_casts)
    yield Moment(name=f"forward of the {one.role}'s head", parts=(*kept, inside, together))
    if root:
        yield Moment(
            name=f"return of the {one.role}'s head", parts=(*kept, part(one.role, "gathered layers", 2 * root))
        )
    inside = part(one.role, "temporaries", one.head.backward_moment + one.waiting)
    yield Moment(name=f"backward of the {one.role}'s head", parts=(*kept, inside, together))


def _in_layers(
    one: Trained, ready: Mapping[Role, int], after: Mapping[Role, int], collected: int, others: list[Part]
) -> Iterator[Moment]:
    """Yield the moments of layers. `ready` are gradients before the last layer's backward pass, `after` those after."""
    activations = part(one.role, "activations", one.saved)
    inside = part(one.role, "temporaries", one.last_layer + one.waiting)
    yield Moment(
        name=f"backward of the {one.role}'s last layer", parts=(*_gradients(ready), activations, inside, *others)
    )
    for name, left in (("first layer", one.first_layer), ("embedding", one.body.around + one.table)):
        inside = part(one.role, "temporaries", left + collected)
        yield Moment(name=f"backward of the {one.role}'s {name}", parts=(*_gradients(after), inside, *others))


def _in_divided_layers(
    workload: Workload, one: Trained, ready: Mapping[Role, int], others: list[Part]
) -> Iterator[Moment]:
    a = one.body.architecture
    root, layer = gathered_root(workload, a), gathered_layer(workload, a, frozen=not one.body.trained)
    whole, of_layers = gradients(workload)[one.role], layer_to_sum(workload, a)
    of_last = 0 if one.checkpointing else one.body.saved_by(a.blocks[-1][1])

    def moment(
        what: str, layers: str, *, gathered: int, kept: int, inside: int, summed: int = 0, done: int = 0
    ) -> Moment:
        """Return a moment. `done` are the bytes of this model's gradients that are already sharded."""
        return Moment(
            name=f"{what} of the {one.role}'s {layers}",
            parts=(
                *_gradients({**ready, one.role: max(ready[one.role], done)}),
                part(one.role, "activations", kept),
                part(one.role, "temporaries", inside),
                part(one.role, "gradients to sum", summed),
                part(one.role, "gathered layers", gathered),
                *others,
            ),
        )

    last, waiting = "last layer", one.waiting
    yield moment("return", last, gathered=root + 3 * layer, kept=one.saved, inside=waiting)
    yield moment("backward", last, gathered=root + 2 * layer, kept=one.saved, inside=one.last_layer + waiting)
    yield moment(
        "sum",
        last,
        gathered=root + 2 * layer,
        kept=one.saved - of_last,
        inside=waiting,
        summed=of_layers,
        done=whole // a.layers,
    )
    inside = one.first_layer + waiting
    yield moment("backward", "first layer", gathered=root + layer, kept=0, inside=inside, summed=of_layers, done=whole)
    yield moment(
        "backward", "embedding", gathered=root, kept=0, inside=one.body.around + one.table + waiting, done=whole
    )
    yield moment("sum", "embedding", gathered=0, kept=0, inside=one.table, summed=root_to_sum(workload, a), done=whole)


def _of_a_step(workload: Workload) -> Iterator[Part]:
    """Yield the step's temporaries for the largest tensor, an embedding. With adapters they are too small to count."""
    if workload.optimizer_bits == 8 and workload.lora is None:
        numbers = workload.architecture.vocabulary * workload.architecture.hidden
        yield part("policy", "temporaries", EIGHT_BIT_TEMPORARIES[workload.device] * numbers)


def trained_passes(workload: Workload, layout: Layout) -> list[Trained]:
    """Return the trained passes in forward order. A shared critic has none: it reads the policy's hidden states."""
    checkpointing = workload.gradient_checkpointing
    architecture, trained = workload.architecture, workload.lora is None
    policy = Trained(
        role="policy",
        body=Pass.of(workload, architecture, layout, adapters=workload.lora),
        head=None if workload.scores else Head.of(workload, architecture, layout.scored, trained=trained),
        checkpointing=checkpointing,
    )
    if workload.critic not in ("separate", "lora"):
        return [policy]
    architecture = workload.critic_architecture or workload.architecture
    body = Pass.of(workload, architecture, layout, adapters=workload.lora if workload.critic == "lora" else None)
    return [policy, Trained(role="critic", body=body, head=None, checkpointing=checkpointing)]


def _alive(passes: list[Trained]) -> Iterator[Part]:
    """Yield the saved tensors of models whose backward pass has not begun."""
    for one in passes:
        yield part(one.role, "activations", one.saved)
        if one.head is not None:
            yield part(one.role, "logits", one.head.kept)


def _gradients(ready: Mapping[Role, int]) -> Iterator[Part]:
    for role, size in ready.items():
        yield part(role, "gradients", size)
