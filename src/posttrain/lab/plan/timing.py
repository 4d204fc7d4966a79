"""The time of a step and of a run: the work of each phase of a workload, in seconds on given hardware.

Phases follow one another, as in the loop: generate, score, train, publish. Your own reward functions, judges, reading
data and writing checkpoints are not counted. The training devices divide the prompts of a step. A phase takes as long
as the device with the most prompts; devices without a prompt wait. If a run has several ranks, only the first samples,
unless engines do.

traffic.py describes the communication between devices, and the part that they wait for.
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
from posttrain.lab.plan.mesh import (
    Group,
    data_group,
    engine_group,
    of_one_rank,
    part_of,
    samplers,
    shard_group,
    tensor_group,
)
from posttrain.lab.plan.records import PhaseName, Workload
from posttrain.lab.plan.roles import trained_parameters
from posttrain.lab.plan.turns import is_counted, requests, waiting_seconds
from posttrain.models.footprint import holds_base

WAITS = "waiting for tools and environments"


@dataclass(frozen=True, kw_only=True)
class TimedWork:
    """A part of a step and its time."""

    phase: PhaseName
    what: str
    work: Work
    """The work of all devices."""
    seconds: float
    waiting: float = 0.0
    """Seconds in which devices wait for each other's messages."""
    messages: tuple[Collective, ...] = ()
    """The messages of one device."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """All parts of a step, in order."""

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
        """Return the messages of one device in a phase."""
        return tuple(one for part in self.parts if part.phase == phase for one in part.messages)

    def waiting(self, phase: str) -> float:
        """Seconds of a phase in which devices wait for each other's messages."""
        return sum(part.waiting for part in self.parts if part.phase == phase)


def step_of(workload: Workload, *, longest: bool = True) -> Step:
    """Return the arithmetic of a step. Answers have the maximum length with `longest`, otherwise the mean length."""
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
    """Return the work of a step with answers of the mean length, and the seconds of the busiest devices."""
    step = step_of(workload, longest=False)
    own = _share_of(step, data_group(workload).ranks)
    parts = [*_generate(workload, step), *_score(workload, own), *_train(workload, own)]
    timed = [_timed(workload, hardware, step.prompts / own.prompts, *part) for part in parts]
    waits = _waits(workload, step.prompts, _sampled_per_prompt(workload, step))
    if waits:
        timed.append(TimedWork(phase="generate", what=WAITS, work=Work(), seconds=waits))
    return StepCost(parts=tuple(timed))


def useful_devices(workload: Workload) -> int:
    """Return the smallest number of devices that would be as fast as all training devices: none has more prompts (or
    given rows) than the busiest one has now. All rows of a prompt go to one device."""
    prompts = workload.prompts_per_step
    return workload.tensor * -(-prompts // _share_of(step_of(workload), data_group(workload).ranks).prompts)


def evaluation_seconds(workload: Workload, hardware: Hardware, *, prompts: int, samples: int, tokens: int) -> float:
    """Return the seconds of a held-out evaluation: a greedy answer and `samples` samples per prompt, or a pass over
    given rows."""
    if workload.data_kind == "prompts":
        work = drawing_work(workload, prompts=prompts, per_prompt=1 + samples, answer_tokens=tokens)
        waits = _waits(workload, prompts, 1 + samples)
        return work.seconds(hardware, workload.precision) + waits
    held_out = _share_of(replace(step_of(workload, longest=False), prompts=prompts), data_group(workload).ranks)
    return _scored(workload, workload.architecture, held_out).seconds(hardware, workload.precision)


def reference_seconds(workload: Workload, hardware: Hardware, *, rows: int) -> float:
    """Return the seconds of the reference's pass over given rows (pairs count once), which a run makes once, before its
    first step. Each rank passes all of them. 0 if the algorithm needs none, or if answers are sampled: then each step
    has its own."""
    w = workload
    if "reference" not in w.needs or w.data_kind == "prompts":
        return 0.0
    whole = replace(step_of(w, longest=False), prompts=rows)
    frozen = w.reference is not None or w.lora is not None
    return _scored(w, w.reference or w.architecture, whole, narrow=frozen).seconds(hardware, w.precision)


def drawing_work(workload: Workload, *, prompts: int, per_prompt: int, answer_tokens: int, longest: int = 0) -> Work:
    """Return the work of sampling, turn by turn if a completion has several. A returning trajectory is computed again
    from its first token. With turns, `answer_tokens` and `longest` are per turn."""
    if workload.turns is None:
        return sampling_work(
            workload, prompts=prompts, per_prompt=per_prompt, answer_tokens=answer_tokens, longest=longest
        )
    turns = replace(workload.turns, mean_tokens=answer_tokens)
    work = Work()
    for one in requests(turns, workload.completion_tokens):
        behind = replace(workload, turns=None, prompt_tokens=workload.prompt_tokens + one.before)
        # rows of a group share only their prompt
        who = (prompts, per_prompt) if not one.before else (max(1, round(prompts * per_prompt * one.share)), 1)
        work += sampling_work(behind, prompts=who[0], per_prompt=who[1], answer_tokens=one.tokens, longest=longest)
    return work


def _waits(workload: Workload, prompts: int, per_prompt: int) -> float:
    """Return the seconds of waiting for tools and environments."""
    counted = is_counted(workload)
    return waiting_seconds(workload.turns, prompts * per_prompt, workload.max_batch_rows, counted=counted)


def _sampled_per_prompt(workload: Workload, step: Step) -> int:
    return step.per_prompt + ("greedy_reward" in workload.needs)


def sampling_work(workload: Workload, *, prompts: int, per_prompt: int, answer_tokens: int, longest: int = 0) -> Work:
    """Return the sampling work of one device for its share of the prompts. The sampler is the first rank, an engine, or
    a group of training devices. Devices of a group or of a separate engine divide matrices. `longest`: tokens of the
    longest answer, if `answer_tokens` is a mean."""
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
"""(phase, name, work of one device)."""


def _timed(workload: Workload, hardware: Hardware, loads: float, phase: PhaseName, what: str, one: Work) -> TimedWork:
    """Return the timed work. `loads` is the number of devices that the work would fill, each as busy as the busiest."""
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
    """Return the share of a step on the device with the most prompts."""
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
    """Are the policy's matrices stored in the precision of products? Frozen ones under adapters on a GPU are."""
    return workload.lora is not None and holds_base(workload.device)


def _scored(workload: Workload, model: Architecture, step: Step, *, narrow: bool = False, **how: Any) -> Work:
    """Return the work of a scoring pass. `narrow` is as in `roles.layer_bytes`."""
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
    if "reference" in w.needs and w.data_kind == "prompts":
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
    for role, model, how in trained_models(w):
        work = cost.training(part_of(model, w.tensor), step, precision, how, with_head=role == "policy")
        frozen = how.adapter_parameters > 0
        told = traffic.of_updates(w, model, step, trained=how.trained_parameters, frozen=frozen)
        yield "train", role, work + Work(messages=told)
    if w.data_kind == "prompts" and (w.engine != "shared" or w.samplers is not None):
        sent = Work(messages=traffic.of_publishing(w, policy))
        yield "train", "weights to the sampler", cost.publishing(part_of(policy, w.tensor), precision) + sent


def trained_models(workload: Workload) -> Iterator[tuple[str, Architecture, Trained]]:
    """Yield the models with their own update. A critic that shares the policy's weights needs almost none."""
    w, policy, trained = workload, workload.architecture, trained_parameters(of_one_rank(workload))
    adapters = trained["policy"] if w.lora is not None else 0
    ranks = shard_group(w).ranks
    how = Trained(
        trained_parameters=trained["policy"],
        adapter_parameters=adapters,
        recomputes=w.gradient_checkpointing,
        optimizer_bytes=w.optimizer_bits // 8,
        ranks=1 if w.sharding == "none" else ranks,
    )
    yield "policy", policy, how
    if w.critic == "separate":
        critic = w.critic_architecture or policy
        yield "critic", critic, replace(how, trained_parameters=trained["critic"], adapter_parameters=0)
    elif w.critic == "lora":
        yield "critic", policy, replace(how, trained_parameters=trained["critic"], adapter_parameters=trained["critic"])


def _adapter_parameters(workload: Workload) -> int:
    return trained_parameters(of_one_rank(workload))["policy"] if workload.lora is not None else 0
