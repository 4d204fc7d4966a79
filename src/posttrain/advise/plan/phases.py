"""The moments of a step at which most is alive, one after the other; the largest of each phase is what counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posttrain.advise.plan.activations import Pass
from posttrain.advise.plan.generate import choice, keys_and_values
from posttrain.advise.plan.head import Head
from posttrain.advise.plan.layout import microbatches
from posttrain.advise.plan.records import Part, Phase, PhaseName, Role, Workload
from posttrain.advise.plan.roles import frozen_scorers, gradients, resident

RECORD_BYTES = 72
"""Of each place of the padded records of a step: ids and versions of 8 bytes, masks of one, and a dozen numbers of 4,
most of them twice: as experience, and as the rows of a batch."""


def phases_of(workload: Workload) -> Iterator[Phase]:
    stays = resident(workload)
    if workload.data_kind == "prompts":
        yield _largest("generate", stays, _generate(workload))
        scored = list(_score(workload))
        if scored:
            yield _largest("score", stays, scored)
    yield _largest("train", stays, _train(workload))


@dataclass(frozen=True, kw_only=True)
class Moment:
    name: str
    parts: Sequence[Part]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def _largest(name: PhaseName, stays: Sequence[Part], moments: Iterator[Moment] | Sequence[Moment]) -> Phase:
    moment = max(moments, key=lambda one: one.bytes)
    parts = [part for part in (*stays, *moment.parts) if part.bytes]
    return Phase(name=name, parts=tuple(parts), moment=moment.name)


def records(workload: Workload) -> Part:
    size = RECORD_BYTES * workload.rows * workload.row_tokens
    return Part(role="policy", what="records of the step", bytes=size)


def _generate(workload: Workload) -> Iterator[Moment]:
    cache = Part(role="sampler", what="keys and values", bytes=keys_and_values(workload))
    chosen = Part(role="sampler", what="logits", bytes=choice(workload))
    yield Moment(name="choice of a token", parts=(cache, chosen))


def _score(workload: Workload) -> Iterator[Moment]:
    layout = microbatches(workload).largest
    passes: list[tuple[Role, Pass]] = []
    if workload.old_pass:
        passes.append(("policy", Pass.of(workload, workload.architecture, layout, adapters=workload.lora)))
    if workload.critic in ("separate", "lora"):
        critic = workload.critic_architecture or workload.architecture
        passes.append(("critic", Pass.of(workload, critic, layout, adapters=workload.lora)))
    passes.extend((role, Pass.of(workload, a, layout, adapters=None)) for role, a in frozen_scorers(workload))
    for role, one in passes:
        inside = Part(role=role, what="temporaries", bytes=one.forward_moment)
        yield Moment(name=f"layers of the {role}", parts=(inside, records(workload)))
        if role != "critic":
            head = Head.of(workload, one.architecture, layout.scored, trained=False)
            yield Moment(
                name=f"head of the {role}",
                parts=(Part(role=role, what="logits", bytes=head.forward_moment), records(workload)),
            )


def _train(workload: Workload) -> Iterator[Moment]:
    layout, number = microbatches(workload)
    policy = Pass.of(workload, workload.architecture, layout, adapters=workload.lora)
    head = Head.of(workload, workload.architecture, layout.scored, trained=workload.lora is None)
    whole = gradients(workload)
    before = whole if number > 1 else dict.fromkeys(whole, 0)
    saved = policy.checkpointed() if workload.gradient_checkpointing else policy.saved
    always = (records(workload),)

    def held(gradient: dict[Role, int], activations: int, logits: int, temporaries: int) -> tuple[Part, ...]:
        return (
            *(Part(role=role, what="gradients", bytes=size) for role, size in gradient.items()),
            Part(role="policy", what="activations", bytes=activations),
            Part(role="policy", what="logits", bytes=logits),
            Part(role="policy", what="temporaries", bytes=temporaries),
            *always,
        )

    yield Moment(
        name="backward of the head",
        parts=held(before, saved, head.kept, head.backward_moment + head.weight_gradient),
    )
    recomputed = policy.saved_by(policy.architecture.blocks[-1][1]) if workload.gradient_checkpointing else 0
    yield Moment(
        name="backward of the last layer",
        parts=held(before, saved, 0, head.weight_gradient + recomputed + policy.backward_moment),
    )
    first = policy.around + policy.saved_by(policy.architecture.blocks[0][1])
    yield Moment(
        name="backward of the first layer",
        parts=held(whole, first, 0, (head.weight_gradient if number > 1 else 0) + policy.backward_moment),
    )
    embedding = head.weight_gradient * (2 if number > 1 and workload.architecture.tied else 1)
    yield Moment(
        name="backward of the embedding",
        parts=held(whole, policy.around, 0, embedding),
    )
    yield Moment(name="optimizer step", parts=held(whole, 0, 0, 0))
