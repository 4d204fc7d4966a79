"""Finds the smallest changes of settings that make a run fit. Each change is tried by planning again.

Changes are ordered by their cost: first those that only take time and change no result, then those that compute
differently, then those that train less, and last those that make the task smaller. A single sufficient change comes
before any combination. A combination contains no change that could be omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from posttrain.config.text import show
from posttrain.lab.plan.mesh import of_one_rank
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.roles import in_main_memory
from posttrain.lab.plan.verdict import size

if TYPE_CHECKING:
    from posttrain.config import RunConfig

Settings = Mapping[str, Any]
SHORTEST_CHUNK = 128


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change that might make the run fit."""

    settings: Settings
    costs: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """Settings that make the run fit, found by planning with them."""

    settings: Settings
    costs: tuple[str, ...]
    """The cost of each setting, in words."""
    bytes: int
    """Memory that the run then needs, in bytes."""
    seconds: float | None
    """Time of a step after the change, in seconds. None if it was not computed."""

    @property
    def command(self) -> str:
        """The settings in the form of the command line."""
        return " ".join(f"{name}={show(value)}" for name, value in self.settings.items())


Found = tuple[int, float | None]
"""(bytes, seconds of a step or None)."""
Try = Callable[[Settings], Found | None]
"""A function that plans with these settings. It returns None if they are refused."""


def smallest_changes(steps: Sequence[Step], attempt: Try, available: int, *, most: int = 3) -> list[Change]:
    """Return up to `most` sufficient single changes, cheapest first; otherwise one sufficient combination, if any."""
    tried = [(step, attempt(step.settings)) for step in steps]
    enough = [_change([step], found) for step, found in tried if found is not None and found[0] <= available]
    if enough:
        return _one_of_each_setting(enough)[:most]
    combined = _combination(steps, attempt, available)
    return [] if combined is None else [combined]


def _one_of_each_setting(changes: Sequence[Change]) -> list[Change]:
    """Keep the first of several sufficient values of a setting, which is the smallest change."""
    first: dict[tuple[str, ...], Change] = {}
    for change in changes:
        first.setdefault(tuple(change.settings), change)
    return list(first.values())


def _combination(steps: Sequence[Step], attempt: Try, available: int) -> Change | None:
    """Add changes in order until the run fits, then remove those that are not needed, the most costly first. A change
    that leaves the peak as it is stays until then: it may save memory at a moment that a later change makes the peak.
    """
    taken: list[Step] = []
    found = attempt({})
    for step in steps:
        more = attempt(_together([*taken, step]))
        if more is None or (found is not None and more[0] > found[0]):
            continue
        taken, found = [*taken, step], more
        if found[0] <= available:
            break
    if found is None or found[0] > available:
        return None
    for step in reversed(taken):
        fewer = [other for other in taken if other is not step]
        without = attempt(_together(fewer))
        if without is not None and without[0] <= available:
            taken, found = fewer, without
    return _change(taken, found)


def _together(steps: Sequence[Step]) -> dict[str, Any]:
    return {name: value for step in steps for name, value in step.settings.items()}


def _change(steps: Sequence[Step], found: Found) -> Change:
    settings = _together(steps)
    costs = {name: step.costs for step in steps for name in step.settings}
    return Change(
        settings=settings,
        costs=tuple(dict.fromkeys(costs[name] for name in settings)),
        bytes=found[0],
        seconds=found[1],
    )


def possible_steps(config: RunConfig, workload: Workload) -> Iterator[Step]:
    """Yield possible changes to this run, cheapest first."""
    yield from _slower(config, workload)
    if config.model.precision == "float32" and workload.device == "cuda":
        yield Step(settings={"model.precision": "bfloat16"}, costs="computes in bfloat16")
    if workload.optimizer_bits == 32 and workload.device == "cuda" and workload.lora is None:
        yield Step(settings={"train.optimizer": "adamw_8bit"}, costs="moments in 8 bits: slightly different updates")
    if workload.device == "cuda" and workload.ranks > 1 and not workload.cpu_offload:
        several = {"train.devices": workload.ranks} if config.train.devices == 1 else {}
        yield Step(settings={"train.cpu_offload": True, **several}, costs=_offloaded(workload))
    if workload.critic == "separate":
        yield Step(settings={"critic.kind": "shared"}, costs="policy and critic change the same weights")
    if workload.lora is None:
        yield Step(
            settings={"lora.rank": 16, **({"critic.kind": "lora"} if workload.critic == "separate" else {})},
            costs="trains only adapters, and needs about ten times the learning rate",
        )
    elif config.lora is not None and config.lora.rank > 8:
        yield Step(settings={"lora.rank": 8}, costs="smaller adapters")
    yield from _smaller(config, workload)


def _slower(config: RunConfig, workload: Workload) -> Iterator[Step]:
    """Yield changes that take time and change no result."""
    train, now = config.train, workload.tokens_per_microbatch
    for tokens in _halves(now, least=min(workload.row_tokens, now)):
        yield Step(settings={"train.tokens_per_microbatch": tokens}, costs="more and smaller passes, same gradient")
    for tokens in _halves(train.logprob_chunk_tokens, least=SHORTEST_CHUNK):
        yield Step(settings={"train.logprob_chunk_tokens": tokens}, costs="log-probabilities in smaller parts")
    if not train.gradient_checkpointing:
        yield Step(settings={"train.gradient_checkpointing": True}, costs="about a third more training time")
    if workload.data_kind == "prompts":
        for rows in _halves(workload.max_batch_rows, least=8):
            yield Step(
                settings={"sampling.max_batch_rows": rows}, costs="fewer answers decoded together, slower sampling"
            )
    if workload.engine_processes:
        for engines in _halves(workload.engine_processes, least=1):
            yield Step(settings={"rollout.engines": engines}, costs="fewer engines")


def _smaller(config: RunConfig, workload: Workload) -> Iterator[Step]:
    """Yield changes that make the task smaller."""
    if workload.data_kind == "prompts":
        length = config.sampling.max_completion_length
        if workload.turns is not None:
            yield from _shorter_trajectories(config)
        for shorter in _halves(length, least=max(64, length // 4)):
            yield Step(settings={"sampling.max_completion_length": shorter}, costs="shorter answers")
        if "reference" in workload.needs and "kl_coef" in config.algorithm.settings:
            yield Step(settings={"algorithm.kl_coef": 0.0}, costs="nothing keeps the policy close to its reference")
    elif config.data.max_length is not None:
        for shorter in _halves(config.data.max_length, least=config.data.max_length // 4):
            yield Step(settings={"data.max_length": shorter}, costs="longer rows are dropped")


def _shorter_trajectories(config: RunConfig) -> Iterator[Step]:
    most, turns = config.sampling.max_trajectory_length, config.sampling.max_turns
    for shorter in _halves(
        config.longest_completion if most is None else most, least=config.sampling.max_completion_length
    ):
        yield Step(settings={"sampling.max_trajectory_length": shorter}, costs="longer trajectories are truncated")
    for fewer in _halves(turns, least=2):
        yield Step(settings={"sampling.max_turns": fewer}, costs="fewer turns per trajectory")


def _offloaded(workload: Workload) -> str:
    kept = in_main_memory(of_one_rank(replace(workload, cpu_offload=True)))
    return f"{size(kept)} of main memory for each device, and far slower steps: AdamW on the processor, and copies"


def _halves(number: int, least: int) -> Iterator[int]:
    """Yield a half, a quarter ... of the number, down to `least`.

    >>> list(_halves(2048, least=300))
    [1024, 512]
    """
    while number // 2 >= max(1, least):
        number //= 2
        yield number
