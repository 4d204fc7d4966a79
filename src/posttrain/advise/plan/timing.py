"""What a step and a run take: the work of each phase for a workload, in seconds on given hardware.

Phases follow one another, as in the loop: generate, score, train, publish. Not counted are reward functions of your
own, judges, reading data and writing checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from posttrain.advise.plan import cost
from posttrain.advise.plan.arithmetic import Step
from posttrain.advise.plan.cost import Trained, Work
from posttrain.advise.plan.hardware import Hardware
from posttrain.advise.plan.records import PhaseName, Workload


@dataclass(frozen=True, kw_only=True)
class TimedWork:
    """One thing that a step does, and how long it takes."""

    phase: PhaseName
    what: str
    work: Work
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
    answer = w.completion_tokens if longest or w.mean_completion_tokens is None else w.mean_completion_tokens
    return Step(
        prompts=w.prompts_per_step,
        per_prompt=w.rows // w.prompts_per_step,
        rows_are="answers" if w.data_kind == "prompts" else "pairs" if w.data_kind == "pairs" else "examples",
        prompt_tokens=w.prompt_tokens,
        answer_tokens=answer,
        minibatches=w.minibatches,
        epochs=w.epochs,
        microbatch_tokens=w.tokens_per_microbatch,
        shares_prompts=w.data_kind in ("prompts", "pairs"),
    )


def cost_of_step(workload: Workload, hardware: Hardware) -> StepCost:
    """The work of one step with answers of the mean length, and its seconds."""
    step = step_of(workload, longest=False)
    parts: list[TimedWork] = []
    for phase, what, work in (*_generate(workload, step), *_score(workload, step), *_train(workload, step)):
        count = workload.engine_ranks if phase == "generate" and workload.engine == "separate" else hardware.count
        seconds = work.seconds(replace(hardware, count=count), workload.precision)
        parts.append(TimedWork(phase=phase, what=what, work=work, seconds=seconds))
    return StepCost(parts=tuple(parts))


_Named = tuple[PhaseName, str, Work]


def sampling_work(workload: Workload, *, prompts: int, per_prompt: int, answer_tokens: int) -> Work:
    """Answers to these prompts, divided evenly among the devices that sample."""
    devices = workload.engine_ranks if workload.engine == "separate" else workload.ranks
    own = -(-prompts // devices)
    work = cost.generating(
        workload.architecture,
        prompts=own,
        rows=own * per_prompt,
        prompt_tokens=workload.prompt_tokens,
        answer_tokens=answer_tokens,
        rows_together=workload.max_batch_rows,
        precision=workload.precision,
    )
    return work * devices


def _generate(workload: Workload, step: Step) -> Iterator[_Named]:
    if workload.data_kind != "prompts":
        return
    rows = step.per_prompt + ("greedy_reward" in workload.needs)
    work = sampling_work(workload, prompts=step.prompts, per_prompt=rows, answer_tokens=step.answer_tokens)
    yield "generate", "answers", work


def _score(workload: Workload, step: Step) -> Iterator[_Named]:
    w, precision = workload, workload.precision
    policy, adapters = w.architecture, _adapter_parameters(w)
    for number, model in enumerate(w.reward_models):
        name = "reward model" if len(w.reward_models) == 1 else f"reward model {number + 1}"
        yield "score", name, cost.scoring(model, step, precision, with_head=False)
    if w.old_pass:
        yield "score", "old log-probabilities", cost.scoring(policy, step, precision, adapters=adapters)
    if w.critic == "separate":
        yield "score", "values", cost.scoring(w.critic_architecture or policy, step, precision, with_head=False)
    elif w.critic == "lora" or (w.critic == "shared" and not w.old_pass):
        yield "score", "values", cost.scoring(policy, step, precision, with_head=False, adapters=adapters)
    if "reference" in w.needs:
        yield "score", "reference log-probabilities", cost.scoring(w.reference or policy, step, precision)
    if "teacher" in w.needs:
        yield "score", "teacher log-probabilities", cost.scoring(w.teacher or policy, step, precision)
    for need in ("current", "mismatched"):
        if need in w.needs:
            once = cost.scoring(policy, step, precision, adapters=adapters)
            yield "score", f"{need} log-probabilities", once * w.epochs


def _train(workload: Workload, step: Step) -> Iterator[_Named]:
    w, policy, precision = workload, workload.architecture, workload.precision
    adapters = _adapter_parameters(w)
    trained = adapters or policy.parameters
    how = Trained(
        trained_parameters=trained,
        adapter_parameters=adapters,
        recomputes=w.gradient_checkpointing,
        optimizer_bytes=w.optimizer_bits // 8,
    )
    yield "train", "policy", cost.training(policy, step, precision, how)
    if w.critic == "separate":
        critic = w.critic_architecture or policy
        own = replace(how, trained_parameters=critic.trunk_parameters, adapter_parameters=0)
        yield "train", "critic", cost.training(critic, step, precision, own, with_head=False)
    elif w.critic == "lora":
        rank = policy.lora_parameters(w.critic_rank)
        own = replace(how, trained_parameters=rank, adapter_parameters=rank)
        yield "train", "critic", cost.training(policy, step, precision, own, with_head=False)
    if w.ranks > 1:
        yield "train", "between devices", cost.sharding(policy, step, trained, w.ranks, precision)
    if w.data_kind == "prompts" and w.engine != "shared":
        yield "train", "weights to the sampler", cost.publishing(policy, precision)


def _adapter_parameters(workload: Workload) -> int:
    lora = workload.lora
    return 0 if lora is None else workload.architecture.lora_parameters(lora.rank, lora.targets)
