"""What a step and a run take: the work of each phase for a workload, in seconds on given hardware.

Phases follow one another, as in the loop: generate, score, train, publish. Not counted are reward functions of your
own, judges, reading data and writing checkpoints. The prompts of a step are dealt out among the devices that train, and
a phase takes as long as the device with most of them: one without a prompt waits.

Devices that work together send each other bytes. Each receives, of n that divide something:

    gathering what is divided     (n - 1) / n of it                   all-gather; scattering sums of gradients the same
    summing what each one has     2 (n - 1) / n of it                 all-reduce: scatter, then gather

With the weights divided (FSDP, arXiv:2304.11277) every pass gathers them, sampling and scoring included, and each
backward pass gathers them again and scatters its gradients. With gradients divided (ZeRO's second stage,
arXiv:1910.02054) each backward pass scatters them, and the updated weights are gathered. With moments divided, or
nothing, gradients are summed once per update. An engine that divides its matrices sums the output of attention and of
the MLP of every layer (arXiv:1909.08053).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from posttrain.lab.plan import cost
from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.cost import MASTER_BYTES, Trained, Work, bytes_of
from posttrain.lab.plan.hardware import Hardware
from posttrain.lab.plan.layout import Step
from posttrain.lab.plan.records import PhaseName, Workload


@dataclass(frozen=True, kw_only=True)
class TimedWork:
    """One thing that a step does, and how long it takes."""

    phase: PhaseName
    what: str
    work: Work
    """Of all devices."""
    seconds: float


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


def step_of(workload: Workload, *, longest: bool = True) -> Step:
    """The arithmetic of a step; `longest`: with every answer as long as it may be, else as long as the mean."""
    w = workload
    answer, prompt = w.completion_tokens, w.prompt_tokens
    if not longest:
        answer, prompt = w.mean_completion_tokens or answer, w.mean_prompt_tokens or prompt
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
    )


def cost_of_step(workload: Workload, hardware: Hardware) -> StepCost:
    """The work of one step with answers of the mean length, and the seconds of the devices that have most of it."""
    step = step_of(workload, longest=False)
    own = _share_of(step, workload.ranks)
    parts = [*_generate(workload, step), *_score(workload, own), *_train(workload, own)]
    return StepCost(parts=tuple(_timed(workload, hardware, step.prompts / own.prompts, *part) for part in parts))


def useful_devices(workload: Workload) -> int:
    """As many as would take no longer than all that train together: the fewest of which none has more prompts (or given
    rows) than the one with most of them has now; all rows of a prompt go to one."""
    prompts = workload.prompts_per_step
    return -(-prompts // _share_of(step_of(workload), workload.ranks).prompts)


def evaluation_seconds(workload: Workload, hardware: Hardware, *, prompts: int, samples: int, tokens: int) -> float:
    """Of one held-out evaluation: a greedy answer and so many samples of each prompt, or a pass over given rows."""
    if workload.data_kind == "prompts":
        work = sampling_work(workload, prompts=prompts, per_prompt=1 + samples, answer_tokens=tokens)
    else:
        held_out = _share_of(replace(step_of(workload, longest=False), prompts=prompts), workload.ranks)
        work = _scored(workload, workload.architecture, held_out)
    return work.seconds(hardware, workload.precision)


def sampling_work(workload: Workload, *, prompts: int, per_prompt: int, answer_tokens: int) -> Work:
    """Answers to these prompts, of one device: of those that train each has its own prompts, an engine of its own
    divides its matrices."""
    w, model, apart = workload, workload.architecture, workload.engine == "separate"
    own = prompts if apart else -(-prompts // w.ranks)
    work = cost.generating(
        model,
        prompts=own,
        rows=own * per_prompt,
        prompt_tokens=w.prompt_tokens,
        answer_tokens=answer_tokens,
        rows_together=w.max_batch_rows,
        precision=w.precision,
    )
    if apart:
        tokens = own * (w.prompt_tokens + per_prompt * answer_tokens)
        divided = replace(work, flops=work.flops / w.engine_ranks, bytes=work.bytes / w.engine_ranks)
        return divided + _engine_sums(model, tokens, w)
    return _with_gathering(work, model, w) if w.engine == "shared" else work


_Named = tuple[PhaseName, str, Work]
"""Of one device."""


def _timed(workload: Workload, hardware: Hardware, loads: float, phase: PhaseName, what: str, one: Work) -> TimedWork:
    """`loads`: how many devices the work would fill, each with as much as the busiest one has."""
    apart = phase == "generate" and workload.engine == "separate"
    everything = one * (workload.engine_ranks if apart else loads)
    return TimedWork(phase=phase, what=what, work=everything, seconds=one.seconds(hardware, workload.precision))


def _share_of(step: Step, devices: int) -> Step:
    """What the device with most prompts has of a step."""
    return replace(step, prompts=-(-step.prompts // devices))


def _generate(workload: Workload, step: Step) -> Iterator[_Named]:
    if workload.data_kind != "prompts":
        return
    rows = step.per_prompt + ("greedy_reward" in workload.needs)
    work = sampling_work(workload, prompts=step.prompts, per_prompt=rows, answer_tokens=step.answer_tokens)
    yield "generate", "answers", work


def _scored(workload: Workload, model: Architecture, step: Step, **how: Any) -> Work:
    return _with_gathering(cost.scoring(model, step, workload.precision, **how), model, workload)


def _score(workload: Workload, step: Step) -> Iterator[_Named]:
    w, policy, adapters = workload, workload.architecture, _adapter_parameters(workload)
    for number, model in enumerate(w.reward_models):
        name = "reward model" if len(w.reward_models) == 1 else f"reward model {number + 1}"
        yield "score", name, _scored(w, model, step, with_head=False)
    if w.old_pass:
        yield "score", "old log-probabilities", _scored(w, policy, step, adapters=adapters)
    if "squared_probs" in w.needs:
        yield "score", "squared probabilities", _scored(w, policy, step, adapters=adapters)
    if w.critic == "separate":
        yield "score", "values", _scored(w, w.critic_architecture or policy, step, with_head=False)
    elif w.critic == "lora" or (w.critic == "shared" and not w.old_pass):
        yield "score", "values", _scored(w, policy, step, with_head=False, adapters=adapters)
    if "reference" in w.needs:
        yield "score", "reference log-probabilities", _scored(w, w.reference or policy, step)
    if "teacher" in w.needs:
        yield "score", "teacher log-probabilities", _scored(w, w.teacher or policy, step)
    for need in ("current", "current_entropy", "mismatched"):
        if need in w.needs:
            yield (
                "score",
                f"{need.removesuffix('_entropy')} log-probabilities",
                _scored(w, policy, step, adapters=adapters) * w.epochs,
            )


def _train(workload: Workload, step: Step) -> Iterator[_Named]:
    w, policy, precision = workload, workload.architecture, workload.precision
    told = Work()
    for role, model, how in _trained(w):
        yield "train", role, cost.training(model, step, precision, how, with_head=role == "policy")
        told += _update_traffic(model, how.trained_parameters, step, w)
    if w.ranks > 1:
        yield "train", "between devices", told
    if w.data_kind == "prompts" and w.engine != "shared":
        yield "train", "weights to the sampler", cost.publishing(policy, precision) + _sent_weights(policy, w)


def _trained(workload: Workload) -> Iterator[tuple[str, Architecture, Trained]]:
    """The models that have an update of their own; a critic that shares the policy's weights has next to none."""
    w, policy, adapters = workload, workload.architecture, _adapter_parameters(workload)
    how = Trained(
        trained_parameters=adapters or policy.parameters,
        adapter_parameters=adapters,
        recomputes=w.gradient_checkpointing,
        optimizer_bytes=w.optimizer_bits // 8,
        ranks=1 if w.sharding == "none" else w.ranks,
    )
    yield "policy", policy, how
    if w.critic == "separate":
        critic = w.critic_architecture or policy
        yield "critic", critic, replace(how, trained_parameters=critic.trunk_parameters, adapter_parameters=0)
    elif w.critic == "lora":
        rank = policy.lora_parameters(w.critic_rank)
        yield "critic", policy, replace(how, trained_parameters=rank, adapter_parameters=rank)


def _adapter_parameters(workload: Workload) -> int:
    lora = workload.lora
    return 0 if lora is None else workload.architecture.lora_parameters(lora.rank, lora.targets)


# --- between devices -------------------------------------------------------------------------------------------------


def _with_gathering(work: Work, model: Architecture, workload: Workload) -> Work:
    """Passes without gradient, with the weights that each of them has to gather."""
    if workload.sharding != "full":
        return work
    passes = work.layer_calls / model.layers
    return work + Work(link_bytes=passes * _received_share(workload.ranks) * _weights(model, workload))


def _update_traffic(model: Architecture, trained_parameters: int, step: Step, workload: Workload) -> Work:
    """Of all _update_traffic of a step, whose share of one device `step` is."""
    passes, gradients = step.epochs * step.microbatches, MASTER_BYTES * trained_parameters
    received = {
        "none": step.updates * 2 * gradients,
        "optimizer": step.updates * 2 * gradients,
        "gradients": (passes + step.updates) * gradients,
        "full": passes * (2 * _weights(model, workload) + gradients),
    }[workload.sharding]
    return Work(link_bytes=_received_share(workload.ranks) * received)


def _engine_sums(model: Architecture, tokens: int, workload: Workload) -> Work:
    """Of an _engine_sums of its own, which divides its matrices, for so many tokens that go through it."""
    sums = 2 * model.layers * tokens * model.hidden * bytes_of(workload.precision)
    return Work(link_bytes=2 * _received_share(workload.engine_ranks) * sums)


def _sent_weights(model: Architecture, workload: Workload) -> Work:
    """The trained weights on their way to the sampler: gathered where they are divided, or sent to its devices."""
    sent = _weights(model, workload)
    if workload.engine == "separate":
        return Work(link_bytes=sent / workload.engine_ranks)
    return Work(link_bytes=_received_share(workload.ranks) * sent if workload.sharding == "full" else 0.0)


def _weights(model: Architecture, workload: Workload) -> int:
    return model.parameters * bytes_of(workload.precision)


def _received_share(devices: int) -> float:
    return (devices - 1) / devices
