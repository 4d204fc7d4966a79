"""The time of a step and of a run: the work of each phase for a workload, in seconds on given hardware.

Phases follow one another, as in the loop: generate, score, train, publish. Not counted are reward functions of your
own, judges, reading data and writing checkpoints. The prompts of a step are dealt out among the devices that train, and
a phase takes as long as the device with most of them: one without a prompt waits. Of several ranks of a run the first
samples alone, unless engines do.

What devices that work together tell each other, and which of it they wait for, says traffic.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from posttrain.lab.plan import cost, traffic
from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.collectives import Collective
from posttrain.lab.plan.cost import Trained, Work
from posttrain.lab.plan.hardware import Hardware
from posttrain.lab.plan.layout import Step
from posttrain.lab.plan.mesh import Group, data_group, engine_group, part_of, samplers, shard_group, tensor_group
from posttrain.lab.plan.records import PhaseName, Workload
from posttrain.lab.plan.turns import is_counted, requests, waiting_seconds
from posttrain.models.footprint import holds_base

WAITS = "waiting for tools and environments"


@dataclass(frozen=True, kw_only=True)
class TimedWork:
    """One thing that a step does, and how long it takes."""

    phase: PhaseName
    what: str
    work: Work
    """The work of all devices."""
    seconds: float
    waiting: float = 0.0
    """The seconds in which devices wait for each other's messages."""
    messages: tuple[Collective, ...] = ()
    """The messages of one device."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Everything that a step does, in its order."""

    parts: tuple[TimedWork, ...]

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def work(self) -> Work:
        return sum((part.work for part in self.parts), Work())

    def of(self, phase: str) -> float:
        """Seconds of a phase."""
        return sum(part.seconds for part in self.parts if part.phase == phase)

    def messages(self, phase: str) -> tuple[Collective, ...]:
        """Between the devices of a phase, as one of them has them."""
        return tuple(one for part in self.parts if part.phase == phase for one in part.messages)

    def waiting(self, phase: str) -> float:
        """Seconds of a phase in which devices wait for each other's messages."""
        return sum(part.waiting for part in self.parts if part.phase == phase)


def step_of(workload: Workload, *, longest: bool = True) -> Step:
    """The arithmetic of a step; `longest`: with every answer as long as it may be, else as long as the mean."""
    w = workload
    answer, prompt, drawn = w.completion_tokens, w.prompt_tokens, w.scored_tokens
    if not longest:
        answer, prompt = w.mean_completion_tokens or answer, w.mean_prompt_tokens or prompt
        drawn = answer if w.turns is None else min(answer, w.turns.mean_drawn)
    return Step(
        prompts=w.prompts_per_step,
        per_prompt=w.rows // w.prompts_per_step,
        rows_are="answers" if w.data_kind == "prompts" else "pairs" if w.data_kind == "pairs" else "examples",
        prompt_tokens=prompt,
        answer_tokens=answer,
        minibatches=w.minibatches,
        epochs=w.epochs,
        microbatch_tokens=w.tokens_per_microbatch,
        shares_prompts=w.data_kind in ("prompts", "pairs"),
        turns=w.turns,
        drawn_tokens=None if w.turns is None else drawn,
    )


def cost_of_step(workload: Workload, hardware: Hardware) -> StepCost:
    """The work of one step with answers of the mean length, and the seconds of the devices that have most of it."""
    step = step_of(workload, longest=False)
    own = _share_of(step, data_group(workload).ranks)
    parts = [*_generate(workload, step), *_score(workload, own), *_train(workload, own)]
    timed = [_timed(workload, hardware, step.prompts / own.prompts, *part) for part in parts]
    waits = _waits(workload, step.prompts, _sampled_per_prompt(workload, step))
    if waits:
        timed.append(TimedWork(phase="generate", what=WAITS, work=Work(), seconds=waits))
    return StepCost(parts=tuple(timed))


def useful_devices(workload: Workload) -> int:
    """As many as would take no longer than all that train together: the fewest of which none has more prompts (or given
    rows) than the one with most of them has now; all rows of a prompt go to one."""
    prompts = workload.prompts_per_step
    return workload.tensor * -(-prompts // _share_of(step_of(workload), data_group(workload).ranks).prompts)


def evaluation_seconds(workload: Workload, hardware: Hardware, *, prompts: int, samples: int, tokens: int) -> float:
    """Seconds of one held-out evaluation: a greedy answer and so many samples of each prompt, or a pass over given
    rows."""
    if workload.data_kind == "prompts":
        work = drawing_work(workload, prompts=prompts, per_prompt=1 + samples, answer_tokens=tokens)
        waits = _waits(workload, prompts, 1 + samples)
        return work.seconds(hardware, workload.precision) + waits
    held_out = _share_of(replace(step_of(workload, longest=False), prompts=prompts), data_group(workload).ranks)
    return _scored(workload, workload.architecture, held_out).seconds(hardware, workload.precision)


def drawing_work(workload: Workload, *, prompts: int, per_prompt: int, answer_tokens: int, longest: int = 0) -> Work:
    """As `sampling_work`, turn by turn where a completion has several: whoever comes back is computed from its first
    token again. `answer_tokens` and `longest` are those of a turn then."""
    if workload.turns is None:
        return sampling_work(
            workload, prompts=prompts, per_prompt=per_prompt, answer_tokens=answer_tokens, longest=longest
        )
    turns = replace(workload.turns, mean_tokens=answer_tokens)
    work = Work()
    for one in requests(turns, workload.completion_tokens):
        behind = replace(workload, turns=None, prompt_tokens=workload.prompt_tokens + one.before)
        # their prompt is all that a group has in common
        who = (prompts, per_prompt) if not one.before else (max(1, round(prompts * per_prompt * one.share)), 1)
        work += sampling_work(behind, prompts=who[0], per_prompt=who[1], answer_tokens=one.tokens, longest=longest)
    return work


def _waits(workload: Workload, prompts: int, per_prompt: int) -> float:
    """Seconds for tools and environments."""
    counted = is_counted(workload)
    return waiting_seconds(workload.turns, prompts * per_prompt, workload.max_batch_rows, counted=counted)


def _sampled_per_prompt(workload: Workload, step: Step) -> int:
    return step.per_prompt + ("greedy_reward" in workload.needs)


def sampling_work(workload: Workload, *, prompts: int, per_prompt: int, answer_tokens: int, longest: int = 0) -> Work:
    """Answers to these prompts, of one device that samples: the first rank, or each engine its prompts, or of those
    that train each group; devices of a group or of a separate engine divide its matrices. `longest`: tokens of the
    longest answer, where `answer_tokens` are a mean."""
    w, apart = workload, workload.engine == "separate"
    whole = apart or w.samplers is not None
    own = -(-prompts // samplers(w))
    group = engine_group(w) if apart else Group(1, 1) if whole else tensor_group(w)
    model = w.architecture if whole else part_of(w.architecture, w.tensor)
    work = cost.generating(
        model,
        prompts=own,
        rows=own * per_prompt,
        prompt_tokens=w.prompt_tokens,
        answer_tokens=answer_tokens,
        rows_together=w.max_batch_rows,
        precision=w.precision,
        longest=longest,
    )
    if apart:
        work = replace(work, flops=work.flops / group.ranks, bytes=work.bytes / group.ranks)
    tokens = own * (w.prompt_tokens + per_prompt * answer_tokens)
    passes = work.layer_calls / w.architecture.layers
    sums = traffic.sums_of_layers(w, w.architecture, tokens, passes, group, embedded=apart)
    gathering = () if whole or w.engine == "copy" else traffic.gathering(w, model, passes, narrow=_narrow_base(w))
    return work + Work(messages=(*sums, *gathering))


_Named = tuple[PhaseName, str, Work]
"""Of one device."""


def _timed(workload: Workload, hardware: Hardware, loads: float, phase: PhaseName, what: str, one: Work) -> TimedWork:
    """`loads`: how many devices the work would fill, each with as much as the busiest one has."""
    devices = loads * workload.tensor
    if phase == "generate" and workload.engine == "separate":
        devices = workload.engine_ranks
    elif phase == "generate" and workload.samplers is not None:
        devices = workload.samplers
    everything = one * devices
    waiting = one.waiting(hardware, workload.precision)
    seconds = one.seconds(hardware, workload.precision)
    return TimedWork(phase=phase, what=what, work=everything, seconds=seconds, waiting=waiting, messages=one.messages)


def _share_of(step: Step, devices: int) -> Step:
    """What the device with most prompts has of a step."""
    return replace(step, prompts=-(-step.prompts // devices))


def _generate(workload: Workload, step: Step) -> Iterator[_Named]:
    if workload.data_kind != "prompts":
        return
    turns = workload.turns
    work = drawing_work(
        workload,
        prompts=step.prompts,
        per_prompt=_sampled_per_prompt(workload, step),
        answer_tokens=step.answer_tokens if turns is None else turns.mean_tokens,
        longest=workload.completion_tokens if turns is None else turns.tokens,
    )
    yield "generate", "answers", work


def _narrow_base(workload: Workload) -> bool:
    """Whether the matrices of the policy lie in the precision of products: frozen ones under adapters on a GPU."""
    return workload.lora is not None and holds_base(workload.device)


def _scored(workload: Workload, model: Architecture, step: Step, *, narrow: bool = False, **how: Any) -> Work:
    """`narrow` as in `roles.layer_bytes`."""
    part = part_of(model, workload.tensor)
    work = cost.scoring(part, step, workload.precision, **how)
    return work + Work(messages=traffic.of_scoring(workload, model, step, narrow=narrow))


def _score(workload: Workload, step: Step) -> Iterator[_Named]:
    w, policy, adapters = workload, workload.architecture, _adapter_parameters(workload)
    base = {"adapters": adapters, "narrow": _narrow_base(w)}
    for number, model in enumerate(w.reward_models):
        name = "reward model" if len(w.reward_models) == 1 else f"reward model {number + 1}"
        whole = replace(w, tensor=1)  # no neighbours divide it
        yield "score", name, _scored(whole, model, step, narrow=holds_base(w.device), with_head=False)
    if w.old_pass:
        yield "score", "old log-probabilities", _scored(w, policy, step, **base)
    if "squared_probs" in w.needs:
        yield "score", "squared probabilities", _scored(w, policy, step, **base)
    if w.critic == "separate":
        yield "score", "values", _scored(w, w.critic_architecture or policy, step, with_head=False)
    elif w.critic == "lora" or (w.critic == "shared" and not w.old_pass):
        yield "score", "values", _scored(w, policy, step, with_head=False, **base)
    if "reference" in w.needs:
        yield "score", "reference log-probabilities", _scored(w, w.reference or policy, step, narrow=True)
    if "teacher" in w.needs:
        yield "score", "teacher log-probabilities", _scored(w, w.teacher or policy, step, narrow=True)
    for need in ("current", "current_entropy", "mismatched"):
        if need in w.needs:
            yield (
                "score",
                f"{need.removesuffix('_entropy')} log-probabilities",
                _scored(w, policy, step, **base) * w.epochs,
            )


def _train(workload: Workload, step: Step) -> Iterator[_Named]:
    w, policy, precision = workload, workload.architecture, workload.precision
    for role, model, how in _trained(w):
        work = cost.training(part_of(model, w.tensor), step, precision, how, with_head=role == "policy")
        frozen = how.adapter_parameters > 0
        told = traffic.of_updates(w, model, step, trained=how.trained_parameters, frozen=frozen)
        yield "train", role, work + Work(messages=told)
    if w.data_kind == "prompts" and (w.engine != "shared" or w.samplers is not None):
        sent = Work(messages=traffic.of_publishing(w, policy))
        yield "train", "weights to the sampler", cost.publishing(part_of(policy, w.tensor), precision) + sent


def _trained(workload: Workload) -> Iterator[tuple[str, Architecture, Trained]]:
    """The models that have an update of their own; a critic that shares the policy's weights has next to none."""
    w, policy, adapters = workload, workload.architecture, _adapter_parameters(workload)
    ranks = shard_group(w).ranks
    how = Trained(
        trained_parameters=adapters or part_of(policy, w.tensor).parameters,
        adapter_parameters=adapters,
        recomputes=w.gradient_checkpointing,
        optimizer_bytes=w.optimizer_bits // 8,
        ranks=1 if w.sharding == "none" else ranks,
    )
    yield "policy", policy, how
    if w.critic == "separate":
        critic = w.critic_architecture or policy
        trunk = part_of(critic, w.tensor).trunk_parameters
        yield "critic", critic, replace(how, trained_parameters=trunk, adapter_parameters=0)
    elif w.critic == "lora":
        rank = part_of(policy, w.tensor).lora_parameters(w.critic_rank)
        yield "critic", policy, replace(how, trained_parameters=rank, adapter_parameters=rank)


def _adapter_parameters(workload: Workload) -> int:
    lora, part = workload.lora, part_of(workload.architecture, workload.tensor)
    return 0 if lora is None else part.lora_parameters(lora.rank, lora.targets)
