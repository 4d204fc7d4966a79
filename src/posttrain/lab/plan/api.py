"""A plan of a run: what a step is, whether it fits, how long it takes, what it costs, and what would make it fit.

    plan = make_plan("run.yaml", gpus="8xH100")
    plan = make_plan(model="7b", algorithm="ppo", gpus="8xH100", settings={"lora": {}})
    plan.verdict.answer, plan.run_seconds, plan.changes;  print(plan.render())

Nothing is downloaded and no GPU is needed. Of `posttrain.plan(...)` this is the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.algorithms import ALGORITHMS
from posttrain.bundles import Bundle, bundles_of, ranks_of
from posttrain.config import RunConfig, check, check_over, load_config
from posttrain.config.pipeline import read_pipeline
from posttrain.config.urls import is_url
from posttrain.errors import ConfigError
from posttrain.lab.advise.guides import from_rewards
from posttrain.lab.advise.ranges import Remark, remarks
from posttrain.lab.plan import render as words
from posttrain.lab.plan.fitting import Change, Found, possible_steps, smallest_changes
from posttrain.lab.plan.hardware import Hardware, devices, find_hardware
from posttrain.lab.plan.layout import Step
from posttrain.lab.plan.mesh import check_groups, of_one_rank
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.placements import Placed, has_server, placements, simulated_placements
from posttrain.lab.plan.records import MemoryPlan, Sharding, Workload
from posttrain.lab.plan.roles import in_main_memory
from posttrain.lab.plan.side_by_side import SideBySide, side_by_side
from posttrain.lab.plan.sizes import sized
from posttrain.lab.plan.target import Target, corrected, target_of
from posttrain.lab.plan.timing import StepCost, cost_of_step, evaluation_seconds, reference_seconds, step_of
from posttrain.lab.plan.verdict import DiskPlan, Verdict, disk_of
from posttrain.lab.plan.workload import (
    RowLengths,
    missing_data,
    model_architecture,
    of_stage,
    require_room,
    row_lengths,
    workload_of,
)

ERROR = {"cpu": 0.25, "cuda": 0.25}
"""Share by which memory may be off. On a CPU it was measured (docs/planner-measured.md); for a GPU it is computed."""

SHARED_BY = (2, 4, 8, 16, 32, 64)
"""Numbers of devices to try if the run does not fit."""
DEFAULT_STEPS = 200
"""Default number of steps of a run that is planned without a config."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The predictions about a run, before it is paid for."""

    config: RunConfig
    target: Target
    workload: Workload
    memory: MemoryPlan
    cost: StepCost
    evaluation_seconds: float
    """Seconds of one held-out evaluation."""
    evaluations: int
    reference_seconds: float = 0.0
    """Seconds of the reference's pass over given rows, before the first step."""
    disk: DiskPlan
    changes: tuple[Change, ...] = ()
    """Changes that would make the run fit, if it does not."""
    elsewhere: tuple[str, ...] = ()
    """Other hardware on which the run fits without changes, if it does not fit here."""
    remarks: tuple[Remark, ...] = ()
    """Settings outside their published ranges."""
    placements: tuple[Placed, ...] = ()
    """The possible placements of a run with a vLLM server on GPUs. The run's own is marked as chosen."""
    beside: SideBySide | None = None
    """The simulation of a run whose engines sample while it trains. None if there was none."""

    @property
    def hardware(self) -> Hardware:
        return self.target.hardware

    @property
    def devices(self) -> int:
        """Number of devices to pay for: training devices, and those of separate engines."""
        sampling = self.workload.engine_ranks if self.workload.engine == "separate" else 0
        return self.hardware.count + sampling

    @cached_property
    def step(self) -> Step:
        """The arithmetic of a step whose answers all have the maximum length."""
        return step_of(self.workload)

    @cached_property
    def verdict(self) -> Verdict:
        taken = next((one.verdict for one in self.placements if one.chosen), None)
        return taken or verdict_on(self.memory, self.target)

    @cached_property
    def main_memory(self) -> Verdict | None:
        """The main memory of a machine whose ranks keep weights there; None if they do not, or if the machine's memory
        is unknown."""
        return main_memory_verdict(self.workload, self.target)

    @property
    def fits(self) -> bool:
        """Does the run fit, by the estimate, on each device and in main memory?"""
        return self.verdict.fits and self.has_main_memory(surely=False)

    def has_main_memory(self, surely: bool) -> bool:
        """Does main memory suffice? With `surely`, even if the estimate is too low by its error. True if unknown."""
        found = self.main_memory
        return found is None or (found.answer == "yes" if surely else found.fits)

    @property
    def timed(self) -> bool:
        """Are the run's seconds predicted? Not with `train.cpu_offload`: copies to and from main memory, and AdamW on
        the processor, were never timed."""
        return not self.workload.cpu_offload

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """The resources that the run requests from its cluster, if it has one."""
        return bundles_of(self.config, on_gpu=self.workload.device == "cuda", ranks=ranks_of(self.config))

    @property
    def in_turns(self) -> bool:
        """Do trainer and vLLM server share a GPU?"""
        return any(one.chosen and one.placement == "shared" for one in self.placements)

    @cached_property
    def on_one_device(self) -> Verdict | None:
        """The verdict for one device, if there are several but `train.devices` uses only one. Otherwise None."""
        if self.workload.ranks == 1 or self.config.train.devices != 1:
            return None
        one = replace(self.target, tensor=None, sharding=None, hardware=replace(self.hardware, count=1))
        return verdict_on(predict(workload_for(self.config, one)), one)

    @property
    def start_bytes(self) -> int:
        """Bytes of the full copy from which the first of several ranks samples, in float32 while it is loaded. 0 if
        engines sample, or if nothing is sampled."""
        workload = self.workload
        return 4 * workload.architecture.parameters if workload.engine == "copy" and workload.samplers else 0

    @property
    def too_large_to_start(self) -> bool:
        """Is this copy alone too large for a device?"""
        return self.workload.device == "cuda" and self.start_bytes > self.verdict.available

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step. None if they are not predicted (`timed`)."""
        return self.cost.seconds if self.timed else None

    @property
    def run_seconds(self) -> float | None:
        """Seconds of all steps and evaluations, and of the pass before them. None if they are not predicted."""
        if self.step_seconds is None:
            return None
        evaluations = self.evaluations * self.evaluation_seconds
        return self.reference_seconds + self.workload.steps * self.step_seconds + evaluations

    @property
    def dollars(self) -> tuple[float, float] | None:
        """Cost of the run in dollars, by the cheapest and the dearest offer. None if nothing is rented or timed."""
        hourly, seconds = replace(self.hardware, count=self.devices).price(self.target.price), self.run_seconds
        if hourly is None or seconds is None:
            return None
        return hourly[0] * seconds / 3600, hourly[1] * seconds / 3600

    def line(self) -> str:
        """Return the lines that `posttrain train` prints before it loads anything."""
        return words.line(self)

    def render(self) -> str:
        """Return the plan as text for a terminal."""
        return words.render(self)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, as in a run's plan.json."""
        return words.to_json(self)


def make_plan(
    config: str | PathLike[str] | Mapping[str, Any] | RunConfig | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    model: str | None = None,
    algorithm: str | None = None,
    gpus: str | None = None,
    **how: Any,
) -> Plan:
    """Plan a config, or a model and an algorithm with the defaults of everything else.

    `gpus` is text such as "8xH100"; None means this machine. `how` are further fields of `Target`. Raises ConfigError
    or ModelError if the run cannot be planned. A run that does not fit is no error here.
    """
    named = config is None
    if config is None:
        config = from_flags(model, algorithm)
    elif model is not None or algorithm is not None:
        raise ConfigError(
            given="a configuration together with a model or an algorithm",
            allowed="one of the two",
            fix="Change the configuration with settings: model=7b, algorithm.name=ppo.",
        )
    resolved = load_config(config, overrides).config
    check(resolved)
    require_room(resolved)
    target = target_of(resolved, gpus, **how)
    return simulated(plan_for(resolved, target if named else with_lengths(resolved, target)))


def simulated(plan: Plan) -> Plan:
    """Add a simulation to the plan, if engines sample while the run trains."""
    if not plan.timed:
        return plan
    found = side_by_side(plan.config, plan.workload, plan.hardware, plan.target.length_spread)
    placed = plan.placements if found is None else simulated_placements(plan.placements, found)
    return replace(plan, beside=found, placements=placed)


def with_lengths(config: RunConfig, target: Target) -> Target:
    """Add the lengths of the config's data to the target, or the names of the files that are not on this machine."""
    lengths = row_lengths(config, model_architecture(config.model.path).context)
    return replace(target, lengths=lengths, missing=() if lengths else missing_data(config))


def from_flags(model: str | None, algorithm: str | None) -> dict[str, Any]:
    """Return a minimal configuration with this model and this algorithm."""
    if model is None or algorithm is None:
        raise ConfigError(
            given="neither a configuration nor both a model and an algorithm",
            allowed="one of the two",
            fix="Run posttrain plan my_run.yaml, or posttrain plan --model 7b --algorithm grpo --gpus h100.",
        )
    kind = ALGORITHMS.get(algorithm)
    needs = frozenset[str]() if kind is None else kind().needs
    return {
        "model": model,
        "algorithm": algorithm,
        "data": {"train": "train.jsonl"} | ({"auxiliary": "examples.jsonl"} if "auxiliary" in needs else {}),
        **({"teacher": model} if "teacher" in needs else {}),
        **({"rewards": [{"name": "math"}]} if kind is not None and from_rewards(kind) else {}),
        "train": {"steps": DEFAULT_STEPS},
    }


def plan_for(config: RunConfig, target: Target, *, advice: bool = True) -> Plan:
    """Plan a resolved config. With `advice`, look for unusual settings, and for changes if it does not fit."""
    workload = workload_for(config, target)
    memory, cost = predict(workload), cost_of_step(workload, target.hardware)
    placed = tuple[Placed, ...]()
    if has_server(config, workload):
        cost = cost_of_step(replace(workload, engine="copy"), target.hardware)  # weights are sent
        memory = predict(replace(workload, engine="separate"))
        placed = placements(config, memory, cost, target, error=ERROR[workload.device])
        memory = next(one.memory for one in placed if one.chosen)
    evaluations, evaluation_seconds = _evaluations(
        config, workload, target.hardware, None if target.lengths is None else target.lengths.heldout
    )
    output = None if config.output is None or is_url(config.output) else config.output
    folder = Path(output or "runs") if target.here else None
    plan = Plan(
        config=config,
        target=target,
        workload=workload,
        memory=memory,
        cost=cost,
        placements=placed,
        evaluations=evaluations,
        evaluation_seconds=evaluation_seconds,
        reference_seconds=reference_seconds(workload, target.hardware, rows=_rows_used(config, target.lengths)),
        disk=disk_of(workload, config.checkpoint, folder=folder, step_tokens=step_of(workload).tokens),
    )
    if not advice:
        return plan
    plan = replace(plan, remarks=tuple(remarks(config)))
    if plan.fits:
        return plan
    return replace(plan, changes=tuple(changes_for(plan)), elsewhere=tuple(places_for(plan)))


def workload_for(config: RunConfig, target: Target) -> Workload:
    """Return the workload, which decides memory and time: the config on this hardware, sharded as the target or
    `train.shard` says. Raises ConfigError for impossible groups of ranks.

    `auto` shards within each machine, if a copy of the weights surely fits there and steps are faster that way.
    """
    count, node, shard = target.hardware.count, target.hardware.node, config.train.shard
    tensor = _tensor(config, target)
    if target.sharding is not None or count == 1:
        return _workload(config, target, sharding=target.sharding or "none")
    if shard != "auto":
        how: dict[str, Any] = (
            {"sharding": "full"} if shard * tensor == count else {"sharding": "hybrid", "shard": shard}
        )
        return _workload(config, target, **how)
    full = _workload(config, target, sharding="full")
    if count <= node or count % node or tensor > 1:
        return full
    hybrid = _workload(config, target, sharding="hybrid")
    seconds = [cost_of_step(one, target.hardware).seconds for one in (hybrid, full)]
    return hybrid if seconds[0] < seconds[1] and surely_fits(config, target, hybrid) else full


def _tensor(config: RunConfig, target: Target) -> int:
    """Return the number of devices that divide matrices: the target's, otherwise the run's. CPU ranks count as one."""
    return target.tensor or (config.train.tensor if target.hardware.count > 1 else 1)


def _workload(config: RunConfig, target: Target, *, sharding: Sharding, shard: int | None = None) -> Workload:
    accelerator = target.hardware.device
    names = ("engine", "engine_tensor", "prompt_tokens", "mean_completion_tokens")
    known = {name: getattr(target, name) for name in names}
    if config.has_turns:  # it is the mean of a turn: see `Target.answering`
        known.pop("mean_completion_tokens")
    alone = accelerator.key != "cpu" and config.rollout.engine == "vllm"  # the other GPUs are for its servers
    workload = workload_of(
        config,
        device="cpu" if accelerator.key == "cpu" else "cuda",
        bfloat16=accelerator.bfloat16 is not None,
        ranks=1 if alone else target.hardware.count,
        node=target.hardware.node,
        sharding="none" if alone else sharding,
        shard=None if alone else shard,
        tensor=1 if alone else _tensor(config, target),
        engine_ranks=target.engine_ranks,
        lengths=target.lengths,
        answering=target.answering,
        **{name: value for name, value in known.items() if value is not None},
    )
    check_groups(workload)
    return sized(workload, config, partial(surely_fits, config, target))


def surely_fits(config: RunConfig, target: Target, workload: Workload) -> bool:
    """Does the run fit even if the estimate is too low by its error? With a server, only the trainer counts."""
    if not has_server(config, workload):
        return verdict_on(predict(workload), target).answer == "yes"
    memory = predict(replace(workload, engine="separate"))
    own = tuple(phase for phase in memory.phases if phase.place == "trainer")
    return verdict_on(replace(memory, phases=own), target).answer == "yes"


def verdict_on(memory: MemoryPlan, target: Target) -> Verdict:
    """Compare the needs of the most loaded device, engines included, with the memory: what is free on this machine, or
    all memory of a named device."""
    hardware = target.hardware
    engines = [phase.bytes for phase in memory.phases if phase.place == "engine"]
    needed = max(corrected(memory, hardware.memory_factor), *engines, 0)
    error = ERROR[memory.workload.device]
    return Verdict(needed=needed, available=hardware.memory, error=error, swap=hardware.swap)


def main_memory_verdict(workload: Workload, target: Target) -> Verdict | None:
    """Compare the ranks' needs with the free main memory of one machine. Swap does not count, because memory that a GPU
    copies from is never swapped."""
    available = target.main_memory_bytes
    if not workload.cpu_offload or available is None:
        return None
    needed = min(workload.ranks, workload.node) * in_main_memory(of_one_rank(workload))
    return Verdict(needed=needed, available=available, error=ERROR["cpu"])


def changes_for(plan: Plan) -> list[Change]:
    """Return the smallest changes that make the run fit even if the estimate is too low by its error. If there are
    none, return those that make it fit by the estimate. Each change is planned again."""

    def attempt(settings: Mapping[str, Any], surely: bool) -> Found | None:
        try:
            config = load_config(plan.config, settings).config
            check(config)
            check_over(config, plan.workload.ranks)  # the config may use fewer ranks, or not say how many
        except ConfigError:  # settings that conflict, or that ranks do not support
            return None
        changed = plan_for(config, plan.target, advice=False)
        return (changed.verdict.needed, changed.step_seconds) if changed.has_main_memory(surely) else None

    steps = list(possible_steps(plan.config, plan.workload))
    surely = smallest_changes(steps, partial(attempt, surely=True), plan.verdict.surely)
    return surely or smallest_changes(steps, partial(attempt, surely=False), plan.verdict.available)


def places_for(plan: Plan) -> Iterator[str]:
    """Yield the cheapest single GPU on which the run fits without changes, and the fewest GPUs of the planned kind that
    fit it with sharding.

    A run with a vLLM server trains on one GPU only, so sharding does not apply.
    """

    def fits(hardware: Hardware, sharding: Sharding) -> bool:
        target = replace(plan.target, hardware=hardware, cards=hardware.count, sharding=sharding, tensor=1)
        try:
            check_over(plan.config, 1 if plan.placements else hardware.count)
            return plan_for(plan.config, target, advice=False).fits
        except ConfigError:  # too few GPUs for its servers, or settings that ranks do not support
            return False

    cheapest_first = sorted(devices().values(), key=lambda device: device.price or (0.0, 0.0))
    singles = (find_hardware(device.key) for device in cheapest_first if device.bfloat16 is not None)
    if one := next((hardware for hardware in singles if fits(hardware, "none")), None):
        yield one.name
    own = plan.hardware.device
    if own.key in devices() and not plan.target.here and not plan.placements:
        several = (find_hardware(f"{count}x{own.key}") for count in SHARED_BY if count > plan.hardware.count)
        if many := next((hardware for hardware in several if fits(hardware, "full")), None):
            yield f"{many.name}, sharded"


def _rows_used(config: RunConfig, lengths: RowLengths | None) -> int:
    """Return how many different rows the steps train at most: those of the data, if all of them were read."""
    most = config.train.steps * config.train.prompts_per_step
    if lengths is None or not lengths.whole:
        return most
    return min(most, lengths.rows - (lengths.heldout or 0))


def _evaluations(config: RunConfig, workload: Workload, hardware: Hardware, heldout: int | None) -> tuple[int, float]:
    """Return (number of evaluations, seconds of each). They run before, after, and every `evaluation.every` steps."""
    every, steps, settings = config.evaluation.every, workload.steps, config.evaluation
    number = 2 + ((steps - 1) // every if every else 0)
    mean = step_of(workload, longest=False).answer_tokens if workload.turns is None else workload.turns.mean_tokens
    tokens = settings.max_completion_length or mean
    prompts = settings.prompts if heldout is None else min(settings.prompts, heldout)
    return number, evaluation_seconds(workload, hardware, prompts=prompts, samples=settings.samples, tokens=tokens)


# --- a pipeline ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """The plans of all stages of a pipeline, in order."""

    stages: Mapping[str, Plan]

    @property
    def run_seconds(self) -> float | None:
        """Seconds of all stages. None if a stage has no prediction."""
        seconds = [plan.run_seconds for plan in self.stages.values()]
        return None if None in seconds else sum(one for one in seconds if one is not None)

    @property
    def dollars(self) -> tuple[float, float] | None:
        """Cost of all stages in dollars. None if nothing is rented."""
        parts = [plan.dollars for plan in self.stages.values() if plan.dollars is not None]
        return (sum(low for low, _ in parts), sum(high for _, high in parts)) if parts else None

    @property
    def fits(self) -> bool:
        """Do all stages fit, by the estimates?"""
        return all(plan.fits for plan in self.stages.values())

    def render(self) -> str:
        """Return a line for each stage and for the total, then the full plan of each stage."""
        width = max(map(len, self.stages))
        lines = [f"{name:<{width}}  fits: {plan.verdict.answer}; {plan.line()}" for name, plan in self.stages.items()]
        total = f"all {len(self.stages)} stages: {words.at_most(self.run_seconds)}"
        total += f", {words.money(self.dollars)}" if self.dollars is not None else ""
        each = [f"--- stage {name}\n\n{plan.render()}" for name, plan in self.stages.items()]
        return "\n\n".join(["\n".join([*lines, total]), *each])

    def to_json(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "seconds": self.run_seconds,
            "dollars": None if self.dollars is None else list(self.dollars),
            "stages": [{"name": name, **plan.to_json()} for name, plan in self.stages.items()],
        }


def plan_pipeline(
    source: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    gpus: str | None = None,
    **how: Any,
) -> PipelinePlan:
    """Plan a pipeline: a file or mapping with `stages`. Otherwise as `make_plan`."""
    stages = {}
    for name, config in read_pipeline(source, overrides).with_start_models().items():
        with of_stage(name):
            require_room(config)
            stages[name] = simulated(plan_for(config, with_lengths(config, target_of(config, gpus, **how))))
    return PipelinePlan(stages=stages)
