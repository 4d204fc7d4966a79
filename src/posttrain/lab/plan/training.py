"""The moments of an update at which most may be alive: where the backward pass begins, where it ends, and the step.

The backward pass goes through the models in reverse: a critic of its own first, then the policy, of each the head, the
layers from last to first, the embedding. Activations become fewer while gradients become more, evenly from layer to
layer, so what is alive is largest at one of the ends. From the second micro-batch on all gradients are there already;
on a CPU from the first gradient on, with which the memory of all is taken (train/optimizer.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from posttrain.lab.plan.activations import Pass
from posttrain.lab.plan.head import Head
from posttrain.lab.plan.layout import Layout, microbatches
from posttrain.lab.plan.records import Moment, Part, Role, Workload, part, records
from posttrain.lab.plan.roles import gradients

WIDE = 4


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model's pass in an update."""

    role: Role
    body: Pass
    head: Head | None
    """None for a model without the head of a language model."""
    checkpointing: bool

    @property
    def saved(self) -> int:
        return self.body.checkpointed if self.checkpointing else self.body.saved

    @property
    def cached_casts(self) -> int:
        """While the pass lasts; without checkpointing they are among what is saved."""
        return self.body.cached_casts if self.checkpointing else 0

    @property
    def last_layer(self) -> int:
        """For a moment, in its backward pass: with checkpointing what it kept is made again."""
        again = self.body.saved_by(self.body.architecture.blocks[-1][1]) if self.checkpointing else 0
        return again + self.body.backward_moment

    @property
    def first_layer(self) -> int:
        """What is left when the first layer is reached."""
        return self.body.around + self.body.saved_by(self.body.architecture.blocks[0][1]) + self.body.backward_moment

    @property
    def table(self) -> int:
        """The gradient of a trained embedding, which is dense; of a head that is one, too."""
        a = self.body.architecture
        return WIDE * a.vocabulary * a.hidden if self.body.trained else 0

    @property
    def waiting(self) -> int:
        """The gradient of a trained head from its own backward pass on; of a tied one until the embedding's joins."""
        return self.head.weight_gradient if self.head else 0


def moments(workload: Workload) -> Iterator[Moment]:
    layout, number = microbatches(workload)
    whole = gradients(workload)
    passes = trained_passes(workload, layout)
    in_block, always = workload.device == "cpu", (records(workload),)
    begun = number > 1 or (in_block and workload.critic == "shared")  # whose own weights come before the head
    ready: dict[Role, int] = {role: size if begun else 0 for role, size in whole.items()}
    for place in reversed(range(len(passes))):
        one, others = passes[place], [*_alive(passes[:place]), *always]
        collected = one.waiting if in_block or number > 1 else 0  # elsewhere it becomes the gradient itself
        if one.head is not None:
            yield Moment(
                name=f"forward of the {one.role}'s head",
                parts=(
                    *_gradients(ready),
                    part(one.role, "activations", one.saved),
                    part(one.role, "logits", one.head.kept),
                    part(one.role, "temporaries", one.head.tiles + one.cached_casts),
                    *others,
                ),
            )
            yield Moment(
                name=f"backward of the {one.role}'s head",
                parts=(
                    *_gradients(ready),
                    part(one.role, "activations", one.saved),
                    part(one.role, "logits", one.head.kept),
                    part(one.role, "temporaries", one.head.backward_moment + one.waiting),
                    *others,
                ),
            )
        ready = dict(whole) if in_block else ready
        yield Moment(
            name=f"backward of the {one.role}'s last layer",
            parts=(
                *_gradients(ready),
                part(one.role, "activations", one.saved),
                part(one.role, "temporaries", one.last_layer + one.waiting),
                *others,
            ),
        )
        ready[one.role] = whole[one.role]
        for name, left in (("first layer", one.first_layer), ("embedding", one.body.around + one.table)):
            yield Moment(
                name=f"backward of the {one.role}'s {name}",
                parts=(*_gradients(ready), part(one.role, "temporaries", left + collected), *others),
            )
    yield Moment(name="optimizer step", parts=(*_gradients(whole), *always))


def trained_passes(workload: Workload, layout: Layout) -> list[Trained]:
    """In the order in which they run forward; a shared critic reads the policy's hidden states."""
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
    """Of models whose turn has not come."""
    for one in passes:
        yield part(one.role, "activations", one.saved)
        if one.head is not None:
            yield part(one.role, "logits", one.head.kept)


def _gradients(ready: Mapping[Role, int]) -> Iterator[Part]:
    for role, size in ready.items():
        yield part(role, "gradients", size)
