"""A first configuration for a recommendation: published values, and the names of your own files to fill in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import TypeAdapter

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.config import REWARD_MODEL, check_over, load_config
from posttrain.config.text import dotted, leaves, write_tree
from posttrain.errors import PosttrainError
from posttrain.lab.advise.advice import Cost
from posttrain.lab.advise.facts import GIGABYTE, Facts
from posttrain.lab.advise.guides import from_rewards, samples
from posttrain.lab.advise.ranges import Range, usual_values
from posttrain.lab.plan.architecture import read_architecture, size_classes
from posttrain.lab.plan.fitting import possible_steps, smallest_changes
from posttrain.lab.plan.hardware import hardware_with
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan
from posttrain.lab.plan.target import Target
from posttrain.lab.plan.workload import workload_of

MODEL = "Qwen/Qwen3-0.6B"
"""The model if neither a model nor a size is given."""
ROWS = "rows"
OWN_REWARD_MODEL = "my-reward-model"
"""Placeholder for the folder of an existing reward model."""
FILES: Mapping[str, str] = {
    "prompts": "prompts.jsonl",
    "pairs": "pairs.jsonl",
    "labels": "thumbs.jsonl",
    "examples": "demonstrations.jsonl",
    "ratings": "ratings.jsonl",
    "steps": "steps.jsonl",
}
COLUMNS: Mapping[str, str] = {
    "prompts": "prompt, and what your reward needs, such as answer",
    "pairs": "prompt, chosen, rejected",
    "labels": "prompt, completion, label; or prompt, chosen, rejected",
    "examples": "prompt, completion; or messages",
    "ratings": "prompt, completion, rating",
    "steps": "prompt, completions, labels",
}
ANSWER_LENGTH = 1024
"""Default length of an answer, in tokens."""
TURN_LENGTH = 256
"""Default length of a turn, in tokens."""
MAX_TURNS = 5
"""Default number of turns in a trajectory. A game or a long search needs more."""
TURNS: Mapping[str, Mapping[str, Any]] = {
    "tools": {"tools": ["tools.py:look"]},
    "environment": {"environment": {"function": "environment.py:World", "history": "split"}},
    "agent": {"agent": {"function": "agent.py:run", "history": "split"}},
}
"""Settings for what comes between the turns, with placeholder names for the user's files."""
SCORES_ITSELF = ("environment", "agent")
"""Kinds of turns whose built-in reward of the same name scores the trajectory."""
OF_TURNS = {
    "environment.history": "works even if the chat template rewrites earlier turns",
    "agent.history": "works even if the chat template rewrites earlier turns",
    "sampling.max_completion_length": "tokens of one turn",
    "sampling.max_trajectory_length": "sampled and given tokens of all turns",
}
"""Comments next to these settings."""
UPDATES_PER_BATCH = 4
"""Updates per batch for algorithms that differ from related ones only if a batch is used more than once."""


def model_for(facts: Facts) -> str:
    """Return the named model, or a published one of about the given size and kind."""
    if facts.model or facts.size is None:
        known = size_classes().get((facts.model or MODEL).lower())
        return known["model"] if known else facts.model or MODEL
    wanted, mixture = math.log(facts.size * 1e9), bool(facts.moe)
    kind = [known for known in size_classes().values() if ("expert" in str(known["config"])) == mixture]
    return min(kind, key=lambda known: abs(math.log(known["parameters"]) - wanted))["model"]


def wants_lora(facts: Facts) -> bool:
    """Should the config train LoRA adapters? Yes, if training all weights does not fit; if a CPU would train a billion
    parameters or more (a named model of unknown size may have as many); or if memory is a priority and the memory is
    not known to be enough."""
    if "memory" in facts.priority and not facts.full_training_fits:
        return True
    large = facts.model is not None if facts.size is None else facts.size >= 1
    return facts.full_training_fits is False or (facts.gpus == 0 and large)


def settings_for(kind: type[Algorithm], facts: Facts, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the required settings, and the usual value of each setting whose default is unusual here."""
    usual = usual_values(_known(kind, facts, asked))
    unusual = {name: usual[f"algorithm.{name}"].usual for name in defaults_of(kind) if _differs(kind, name, usual)}
    return {**unusual, **asked}


def defaults_of(kind: type[Algorithm]) -> dict[str, Any]:
    """Map each setting, by its name in a config, to its default."""
    return TypeAdapter(kind).dump_python(kind(), mode="json", by_alias=True)


def starter(
    kind: type[Algorithm], facts: Facts, settings: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> str:
    """Return YAML for `load_config`. A comment after each value with a published range gives this range.

    `settings` are the algorithm's own settings. `changes` are dotted settings of other sections.
    """
    usual = usual_values(_known(kind, facts, settings))
    tree = _tree(kind, facts, settings, usual)
    for path, value in (changes or {}).items():
        section, _, name = path.partition(".")
        told = tree.get(section, {})
        tree[section] = (told if isinstance(told, dict) else {"path": told}) | {name: value}
    return write_tree(tree, _comments(tree, kind, usual))


def _known(kind: type[Algorithm], facts: Facts, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of `ranges.facts_of`, for a configuration that does not exist yet."""
    return {
        "algorithm": kind.key,
        "data_kind": kind.data_kind,
        "online": samples(kind),
        "needs": kind(**settings).needs,
        "lora": wants_lora(facts),
        "parameters": facts.size,
        "scratch": False,
        "rows": None,
        "updates": 1,
        "steps": 200,
        "learned_reward": any("model" in reward for reward in _rewards(kind, facts)),
    }


def _tree(
    kind: type[Algorithm], facts: Facts, settings: Mapping[str, Any], usual: Mapping[str, Range]
) -> dict[str, Any]:
    group = _group_size(kind, facts)
    tree: dict[str, Any] = {"model": model_for(facts)}
    if wants_lora(facts):
        tree["lora"] = {"rank": 16, "alpha": 32}
    if "teacher" in kind(**settings).needs:
        tree["teacher"] = "Qwen/Qwen3-4B"
    tree["algorithm"] = {"name": kind.key, **settings}
    tree["data"] = {"train": FILES[kind.data_kind]}
    if facts.turns is not None and samples(kind):
        tree |= TURNS[facts.turns]
    if rewards := _rewards(kind, facts):
        tree["rewards"] = rewards
    if any(reward.get("model") == REWARD_MODEL for reward in rewards):
        tree[REWARD_MODEL] = {
            "data": {"train": FILES["pairs"]},
            "train": {"steps": 200, "prompts_per_step": 64, "learning_rate": 9e-6},
        }
    if samples(kind):
        tree["sampling"] = {"group_size": group, **_lengths(facts)}
    tree["train"] = _train(kind, usual, group)
    tree["evaluation"] = {"every": 20} if samples(kind) else {"every": 20, "samples": 0}
    return tree


def _differs(kind: type[Algorithm], name: str, usual: Mapping[str, Range]) -> bool:
    """Is the algorithm's default outside the range that applies here? A default of None never is."""
    told = usual.get(f"algorithm.{name}")
    default = defaults_of(kind)[name]
    return told is not None and default is not None and not (told.low or 0) <= default <= (told.high or default)


def _group_size(kind: type[Algorithm], facts: Facts) -> int:
    if not samples(kind) or facts.one_answer:
        return 1
    hard = facts.base_score is not None and facts.base_score < 0.1
    return max(16 if hard else 8 if kind().group_size_needed > 1 else 1, kind().group_size_needed)


def _lengths(facts: Facts) -> dict[str, int]:
    """Return the token limits of an answer, at most half of the model's context length. With several turns: the limits
    of a turn, and of the trajectory, with as many tokens between the turns as in them."""
    if facts.turns is None:
        return {"max_completion_length": _within_context(facts, facts.answer_length or ANSWER_LENGTH)}
    turn = facts.answer_length or TURN_LENGTH
    whole = _within_context(facts, 2 * MAX_TURNS * turn)
    return {
        "max_completion_length": min(turn, whole // 2),
        "max_turns": MAX_TURNS,
        "max_trajectory_length": whole,
    }


def _within_context(facts: Facts, wanted: int) -> int:
    """Return `wanted`, but at most half of the model's context length."""
    try:
        context = read_architecture(model_for(facts)).context
    except PosttrainError:  # nothing is known about this model
        return wanted
    return wanted if context is None else min(wanted, context // 2)


def _train(kind: type[Algorithm], usual: Mapping[str, Range], group: int) -> dict[str, Any]:
    per_step = usual.get("train.prompts_per_step")
    rows = usual.get(ROWS)
    prompts = int(per_step.usual) if per_step else int(rows.usual) // group if rows else 256 // group
    rate = usual.get("train.learning_rate")
    train: dict[str, Any] = {"steps": 200, "prompts_per_step": max(2, prompts)}
    train["learning_rate"] = rate.usual if rate else 1e-6
    if not samples(kind):
        train |= {"schedule": "cosine", "warmup_steps": 20}
    if samples(kind) and "old" in kind().needs:
        train["minibatches"] = UPDATES_PER_BATCH if prompts * group >= 4 * UPDATES_PER_BATCH else 1
    return train


def _rewards(kind: type[Algorithm], facts: Facts) -> list[dict[str, Any]]:
    """Return the `rewards` section that scores this algorithm's samples."""
    if not (from_rewards(kind)):
        return []
    if facts.reward == "judge":
        judge = {"model": "my-judge", "url": "http://localhost:8000/v1"}
        alone = _group_size(kind, facts) == 1  # nothing to compare an answer with
        return [{"judge": judge | ({"mode": "score"} if alone else {})}]
    if facts.reward == "model":
        return [{"model": OWN_REWARD_MODEL, "settings": {"normalize": True}}]
    if facts.reward is None:
        learnt = REWARD_MODEL if "pairs" in facts.data else OWN_REWARD_MODEL
        return [{"model": learnt, "settings": {"normalize": True}}]
    first: dict[str, Any] = {"name": "math"} if facts.goal == "reasoning" else {"function": "rewards.py:score"}
    rewards = [{"name": facts.turns} if facts.turns in SCORES_ITSELF else first]
    return [*rewards, {"function": "rewards.py:second", "weight": 0.5}] if facts.several_rewards else rewards


def _comments(tree: Mapping[str, Any], kind: type[Algorithm], usual: Mapping[str, Range]) -> dict[str, str]:
    told = {dotted(path): usual.get(dotted(path)) for path, _ in leaves(tree)}
    ranged = {path: f"published: {known.words}" for path, known in told.items() if known is not None}
    said = {"data.train": COLUMNS[kind.data_kind]} | (OF_TURNS if "max_turns" in tree.get("sampling", {}) else {})
    return ranged | said


# --- what it costs in memory -----------------------------------------------------------------------------------------


SAME_RESULT = ("train.", "model.", "sampling.max_batch_rows")
"""Prefixes of settings that save memory at the cost of time, with the same result."""


def cost_of(key: str, facts: Facts, settings: Mapping[str, Any], config: str) -> Cost:
    """Return the memory cost of the algorithm with this configuration. Without a model or a size, bytes are None."""
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
    """Return the fewest changes that make the run fit, with the same result. Empty if it fits or none suffice."""
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
    """Predict the memory of a configuration, as a plan does. None if nothing is known about its model."""
    from posttrain.lab.plan.api import workload_for  # it reads the guides, which import this

    tree, ranks = yaml.safe_load(config), facts.gpus or 1
    for reward in tree.get("rewards", ()):
        if reward.get("model") == OWN_REWARD_MODEL:  # the user's own; assumed to be as large as the policy
            reward["model"] = tree["model"]
    try:
        resolved = load_config(tree, changes or {}).config
        if changes:
            check_over(resolved, ranks)
        if facts.gpus and facts.gpu_memory is not None:
            hardware = hardware_with(int(facts.gpu_memory * GIGABYTE), facts.gpus)
            return predict(workload_for(resolved, Target(hardware=hardware, cards=ranks)))
        device, sharding = "cpu" if facts.gpus == 0 else "cuda", "full" if ranks > 1 else "none"
        return predict(workload_of(resolved, device=device, ranks=ranks, sharding=sharding))
    except PosttrainError:
        return None


def _note(memory: MemoryPlan, facts: Facts) -> str:
    each = "on each GPU, " if facts.gpus else ""
    sizes = "" if facts.gpus == 0 or facts.gpu_memory is not None else " with small micro-batches"
    model = "" if facts.model else f" for {model_for(facts)}"
    room = facts.gpu_memory if facts.gpus else None
    fits = "" if room is None or memory.bytes <= room * GIGABYTE else ": it does not fit, even with all memory savings"
    of = f", of {room:g} GiB{fits}" if room else ""
    return f"{each}computed{model}{sizes}{of}; for more, run posttrain plan"


# --- models by role --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Role:
    """A model that a run uses, whether it is trained, and whether it takes memory of its own."""

    name: str
    trained: bool
    counts: bool
    """Does it take memory as a separate model?"""
    note: str = ""

    def __str__(self) -> str:
        kind = "trained" if self.trained else "frozen"
        return f"{self.name} ({kind}{', ' + self.note if self.note else ''})"


def roles_of(algorithm: Algorithm, facts: Facts, *, lora: bool) -> Iterator[Role]:
    """Yield the models, the policy first. Those on another machine or on disk are listed but do not count."""
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
            name="reference", trained=False, counts=False, note="computed once before the first step, kept on disk"
        )
    return Role(
        name="reference",
        trained=False,
        counts=not lora,
        note="the base model itself, under the adapters" if lora else "",
    )


def _scored_by_a_model(facts: Facts) -> bool:
    return facts.reward == "model" or (facts.reward is None and bool({"pairs", "ratings", "steps"} & set(facts.data)))
