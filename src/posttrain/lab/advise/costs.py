"""What a recommendation costs in memory: its models by role, and their bytes as the planner counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.config import load_config
from posttrain.errors import PosttrainError
from posttrain.lab.advise.advice import Cost
from posttrain.lab.advise.facts import GIGABYTE, Facts
from posttrain.lab.advise.starter import OWN_REWARD_MODEL, model_for, wants_lora
from posttrain.lab.plan.fitting import possible_steps, smallest_changes
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan
from posttrain.lab.plan.workload import workload_of

SAME_RESULT = ("train.", "model.", "sampling.max_batch_rows")
"""Settings that save memory and take time."""


def cost_of(key: str, facts: Facts, settings: Mapping[str, Any], config: str) -> Cost:
    """Of the algorithm with this configuration; bytes only where the model or its size is told."""
    roles = list(roles_of(ALGORITHMS[key](**settings), facts, lora=wants_lora(facts)))
    models, told = sum(role.counts for role in roles), tuple(map(str, roles))
    memory = None if facts.model is None and facts.size is None else _counted(config, facts)
    if memory is None:
        return Cost(models=models, roles=told)
    return Cost(
        models=models,
        roles=told,
        bytes=memory.bytes,
        by_role=tuple(memory.peak.by_role.items()),
        note=_note(memory, facts),
    )


def changes_to_fit(config: str, facts: Facts) -> Mapping[str, Any]:
    """The fewest settings with which it fits and learns the same; none where it fits already, or nothing is enough."""
    if not facts.gpus or facts.gpu_memory is None or (facts.model is None and facts.size is None):
        return {}
    memory, available = _counted(config, facts), int(facts.gpu_memory * GIGABYTE)
    if memory is None or memory.bytes <= available:
        return {}

    def attempt(changes: Mapping[str, Any]) -> tuple[int, float] | None:
        counted = _counted(config, facts, changes)
        return None if counted is None else (counted.bytes, 0.0)

    steps = possible_steps(load_config(yaml.safe_load(config)).config, memory.workload)
    same = [step for step in steps if all(name.startswith(SAME_RESULT) for name in step.settings)]
    found = smallest_changes(same, attempt, available, most=1)
    return found[0].settings if found else {}


def _counted(config: str, facts: Facts, changes: Mapping[str, Any] | None = None) -> MemoryPlan | None:
    """None for a model of which nothing is known."""
    tree, ranks = yaml.safe_load(config), facts.gpus or 1
    for reward in tree.get("rewards", ()):
        if reward.get("model") == OWN_REWARD_MODEL:  # yours; taken to be as large as the policy
            reward["model"] = tree["model"]
    try:
        resolved = load_config(tree, changes or {}).config
        device, sharding = "cpu" if facts.gpus == 0 else "cuda", "full" if ranks > 1 else "none"
        return predict(workload_of(resolved, device=device, ranks=ranks, sharding=sharding))
    except PosttrainError:
        return None


def _note(memory: MemoryPlan, facts: Facts) -> str:
    each = "on each GPU, " if facts.gpus else ""
    model = "" if facts.model else f" for {model_for(facts)}"
    room = facts.gpu_memory if facts.gpus else None
    fits = (
        "" if room is None or memory.bytes <= room * GIGABYTE else ": it does not fit, whatever is set to save memory"
    )
    of = f", of {room:g} GiB{fits}" if room else ""
    return f"{each}computed{model}{of}; posttrain plan says more"


# --- models by role --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Role:
    """A model, what is done with it, and when it is no second copy."""

    name: str
    trained: bool
    counts: bool
    """Is it a model of its own in memory?"""
    note: str = ""

    def __str__(self) -> str:
        kind = "trained" if self.trained else "frozen"
        return f"{self.name} ({kind}{', ' + self.note if self.note else ''})"


def roles_of(algorithm: Algorithm, facts: Facts, *, lora: bool) -> Iterator[Role]:
    """The policy first; what is on another machine or on disk is told, and does not count."""
    needs, online = algorithm.needs, algorithm.data_kind == "prompts"
    scored = online and algorithm.learns_from_rewards
    yield Role(name="model with a scalar head" if "scores" in needs else "policy", trained=True, counts=True)
    if "values" in needs:
        note = "a second adapter on the policy's base" if lora else ""
        yield Role(name="critic", trained=True, counts=not lora, note=note)
    if "reference" in needs:
        yield _reference(online, lora)
    if "teacher" in needs:
        yield Role(name="teacher", trained=False, counts=True)
    if scored and _scored_by_a_model(facts):
        yield Role(name="reward model", trained=False, counts=True)
    if scored and facts.reward == "judge":
        yield Role(name="judge", trained=False, counts=False, note="behind an endpoint")


def _reference(online: bool, lora: bool) -> Role:
    if not online:
        return Role(
            name="reference", trained=False, counts=False, note="asked once before the first step, kept on disk"
        )
    return Role(
        name="reference",
        trained=False,
        counts=not lora,
        note="the base model itself, under the adapters" if lora else "",
    )


def _scored_by_a_model(facts: Facts) -> bool:
    return facts.reward == "model" or (facts.reward is None and bool({"pairs", "ratings", "steps"} & set(facts.data)))
