"""The settings of a run: all sections in one model, the names of the settings, and the models that they name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, JsonValue

from posttrain.algorithms import ALGORITHMS
from posttrain.config.algorithm import AlgorithmConfig, walker_of
from posttrain.config.presets import PRESETS
from posttrain.config.schema import FieldDoc, Walker
from posttrain.config.scorers import CheckConfig, RewardConfig, Scorer
from posttrain.config.sections import (
    AgentConfig,
    AlarmConfig,
    CheckpointConfig,
    ClusterConfig,
    CriticConfig,
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    GuardConfig,
    LoRAConfig,
    ModelConfig,
    ReferenceConfig,
    RolloutConfig,
    SampledPairsConfig,
    SamplingConfig,
    TeacherConfig,
    TrainConfig,
)
from posttrain.config.values import BARE, Part, PathText, ToolText, as_list, as_whole, split_form
from posttrain.errors import ConfigError

REWARD_MODEL = "reward_model"
"""Name of the section, of the folder inside the run's folder, and of the model in an entry of rewards or check."""

S = TypeVar("S", bound=Scorer)


class RunConfig(Part):
    """All settings of a run."""

    model: ModelConfig = Field(examples=["Qwen/Qwen3-0.6B"])
    """The model that is trained."""
    lora: LoRAConfig | None = None
    """Low-rank adapters to train. null: all weights are trained."""
    reference: ReferenceConfig | None = None
    """Reference model, for an algorithm that keeps the policy close to one. null: the initial model of the run. With
    lora, or on given answers, it needs no second copy."""
    teacher: TeacherConfig | None = None
    """The teacher, for an algorithm that learns from one (distillation)."""
    critic: CriticConfig | None = None
    """The critic, for an algorithm that has one (ppo). null: a critic with default settings."""
    algorithm: AlgorithmConfig = Field(examples=["grpo"])
    """The algorithm and its settings."""
    data: DataConfig = Field(examples=[{"train": "train.jsonl"}])
    """The prompts or examples."""
    rewards: list[RewardConfig] = []
    """Rewards, whose weighted sum training maximises. An entry that is a string stands for `{name: string}`, or for
    `{function: string}` if it has a dot: `[math, my_rewards.py:brevity]`."""
    check: list[CheckConfig] = []
    """Independent checks. They score held-out answers and a sample of the answers that the rewards accept (see alarms).
    Training never sees their scores."""
    reward_model: dict[str, JsonValue] | None = None
    """A reward model to train first, on preference pairs: the settings of a separate run (at least data and train), in
    the folder reward_model of this run. By default its algorithm is reward_model, and it takes the model and the seed
    of this run. An entry `{model: reward_model}` of rewards or check scores with it."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """Environment that answers the policy's turns, so that a completion may have several turns."""
    tools: Annotated[list[ToolText], BeforeValidator(as_list)] = []
    """Functions that the policy may call, `path/to/file.py:function` or `package.module.function`, or names of built-in
    tools: calculator, python (a program in the sandbox), search:FOLDER (full-text search)."""
    agent: AgentConfig = AgentConfig()
    """Program that requests the policy's turns from an OpenAI-compatible endpoint, instead of an environment and
    tools."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of completions in training."""
    rollout: RolloutConfig = RolloutConfig()
    """Engines that sample completions: the trainer's process, or other processes."""
    cluster: ClusterConfig | None = None
    """Ray cluster (`cluster: ray`) for engines, reward workers and, with `train.devices` above 1, the ranks of the
    trainer. null: they are processes of this machine."""
    sampled_pairs: SampledPairsConfig | None = None
    """For algorithms that learn from pairs: sample answers to the prompts of data.train with the initial model, order
    them by rewards, and train on the pairs (pairs.jsonl in the run's folder). This is one round of iterative DPO; a
    pipeline repeats it. To keep the pairs of earlier rounds, list their pairs.jsonl in data.train as well."""
    train: TrainConfig = Field(examples=[{"steps": 200}])
    """The optimizer and the size of a step."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints: when to save, and how many to keep."""
    guards: GuardConfig = GuardConfig()
    """Limits at which the run stops."""
    alarms: AlarmConfig = AlarmConfig()
    """Alarms for reward hacking."""
    output: PathText | None = None
    """Folder of the run, or a URL (s3://bucket/run, gs://, az://, file:///) to which its files are copied during
    training; see docs/storage.md. null: the first free runs/<model>-<algorithm>-<n>."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(as_whole)] = 0
    """Seed of all randomness in the run."""
    report: bool = True
    """Write report.html."""
    report_to: Annotated[list[Literal["tensorboard", "trackio", "wandb"]], BeforeValidator(as_list)] = []
    """Trackers that receive the run's metrics during the run; each has its own process. `posttrain track` sends a run
    afterwards. The run folder is always written."""

    @property
    def has_turns(self) -> bool:
        """True if a completion may have several turns."""
        return self.environment.function is not None or bool(self.tools) or self.agent.is_given

    @property
    def most_drawn(self) -> tuple[int, str]:
        """Maximum number of tokens of a completion, or of a turn with its own credit, and the limiting settings."""
        sampling, each = self.sampling, "sampling.max_completion_length"
        if not self.has_turns or self.environment.credit == "turn":
            return sampling.max_completion_length, each
        turns = sampling.max_turns * sampling.max_completion_length, f"sampling.max_turns * {each}"
        if sampling.max_trajectory_length is None or turns[0] <= sampling.max_trajectory_length:
            return turns
        return sampling.max_trajectory_length, "sampling.max_trajectory_length"

    def room_for_prompts(self, context: int, reason: str = "") -> int:
        """Return the tokens that sampled completions leave for a prompt in a context of this length.

        Raises ConfigError if that is none; `reason` follows the length, and says why the context ends there.
        """
        longest = self.sampling.max_completion_length
        if longest >= context:
            raise ConfigError(
                given=f"sampling.max_completion_length = {longest} in a context of {context} tokens{reason}: "
                "no prompt fits",
                allowed="less than the context, with room for the prompts",
                fix=f"Set sampling.max_completion_length = {context // 2}.",
            )
        return context - longest

    @property
    def longest_completion(self) -> int:
        """Maximum number of tokens after a prompt, if the model's context has room for them. With several turns and no
        max_trajectory_length, only the policy's tokens count: the length of tools' answers is unknown."""
        sampling = self.sampling
        if not self.has_turns:
            return sampling.max_completion_length
        return sampling.max_trajectory_length or sampling.max_turns * sampling.max_completion_length

    @property
    def has_dropout(self) -> bool:
        """True if adapters use dropout in training."""
        return self.lora is not None and self.lora.dropout > 0

    def samples_exactly(self, precision: str) -> bool:
        """True if the sampler computes exactly as the trainer does, with the newest weights. Otherwise `correction:
        auto` applies a correction."""
        train, local = self.train, self.rollout.engine == "local"
        fresh = train.publish_every == 1 and train.max_staleness == 0 and train.lead == 0
        return precision == "float32" and fresh and local


@functools.cache
def walker() -> Walker:
    """Return the JSON schema of the settings, without those of the algorithms."""
    return Walker(RunConfig.model_json_schema())


def describe_fields() -> tuple[FieldDoc, ...]:
    """Return path, type, default and text of every setting. `posttrain explain` has the algorithms' settings."""
    return walker().fields


def setting_names(algorithm: str | None = None) -> list[str]:
    """Return the dotted paths of all settings, without list positions, including those of one algorithm or of all."""
    own = ["preset", *(doc.path.replace(".N", "") for doc in describe_fields())]
    names = [key for key, _ in ALGORITHMS.that_load()] if algorithm is None else [algorithm]
    of_algorithms = [doc.path for name in names for doc in walker_of(name).fields]
    return list(dict.fromkeys([*own, *(f"algorithm.{path}" for path in of_algorithms)]))


Part.setting_names = staticmethod(setting_names)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for editors, with each algorithm's settings and the presets."""
    schema = copy.deepcopy(dict(walker().root))
    definitions = schema["$defs"]
    choices: list[dict[str, Any]] = [{"enum": list(ALGORITHMS)}]
    for name, _ in ALGORITHMS.that_load():
        settings = copy.deepcopy(dict(walker_of(name).root))
        definitions |= settings.pop("$defs", {})
        settings["properties"] = {"name": {"const": name}, **settings.get("properties", {})}
        choices.append(settings | {"required": ["name", *settings.get("required", [])]})
    definitions["AlgorithmConfig"] = {"anyOf": choices}
    sections = [_definition_of(schema["properties"][section]) for section in BARE if section != "algorithm"]
    for name in (*sections, "RewardConfig", "CheckConfig", "GateConfig"):
        definitions[name] = {"anyOf": [{"type": "string"}, definitions[name]]}
    schema["properties"] = {"preset": {"enum": list(PRESETS)}, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _definition_of(section: Mapping[str, Any]) -> str:
    return (section if "$ref" in section else section["anyOf"][0])["$ref"].removeprefix("#/$defs/")


# --- the models that a run reads -------------------------------------------------------------------------------------


def models_named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield (dotted setting, folder or name) of each model to load, except models behind an endpoint, the model that
    the section `reward_model` trains, and a policy that judges itself."""
    yield "model.path", config.model.path
    for name in ("reference", "teacher", "critic"):
        section = getattr(config, name)
        if section is not None and section.path is not None and not _is_trained_first(section.path, config):
            yield f"{name}.path", section.path
    for name in ("rewards", "check"):
        for place, entry in enumerate(getattr(config, name)):
            setting, path = _of_entry(entry)
            if path is not None and not _is_trained_first(path, config):
                yield f"{name}.{place}.{setting}", path


def functions_named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield (dotted setting, function or class) of all user code: rewards, checks, the environment, tools and the
    agent."""
    for name in ("rewards", "check"):
        for place, entry in enumerate(getattr(config, name)):
            if entry.function is not None:
                yield f"{name}.{place}.function", entry.function
    form, named = split_form(config.environment.function or "")
    if named and form in ("", "trl"):
        yield "environment.function", named
    if config.agent.function is not None:
        yield "agent.function", config.agent.function
    yield from ((f"tools.{place}", tool) for place, tool in enumerate(config.tools) if _is_code(tool))


def _is_code(tool: str) -> bool:
    return "." in tool and not tool.startswith("search:")


def _of_entry(entry: Scorer) -> tuple[str, str | None]:
    judge = entry.judge
    if judge is None:
        return "model", entry.model
    return "judge.model", None if judge.url is not None or judge.model == "policy" else judge.model


def _is_trained_first(path: str, config: RunConfig) -> bool:
    return path == REWARD_MODEL and config.reward_model is not None


def uses_of_reward_model(config: RunConfig) -> list[str]:
    """Return the entries that score with the model of the section reward_model, for example `rewards.0`."""
    return [
        f"{section}.{place}"
        for section, entries in (("rewards", config.rewards), ("check", config.check))
        for place, entry in enumerate(entries)
        if entry.model == REWARD_MODEL
    ]


def in_folder(entries: Sequence[S], folder: Path) -> list[S]:
    """Return the entries, with reward_model replaced by the folder in which the run trained it."""
    trained: dict[str, Any] = {"model": str(folder / REWARD_MODEL)}
    return [entry.model_copy(update=trained) if entry.model == REWARD_MODEL else entry for entry in entries]
