"""The settings of a run: what there is, where each value comes from, and the rules that span several parts.

    load_config("run.yaml", ["train.learning_rate=1e-6"])  ->  Resolved(config, origins)

Precedence: default < preset < file < command line. The models are frozen, so what is printed is what was written, and
the text under a field is its documentation everywhere. This module imports no torch; the algorithm classes are
imported when an algorithm is named.
"""

from __future__ import annotations

import copy
import difflib
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
)

from posttrain.config.alarms import AlarmConfig
from posttrain.config.algorithm import (
    SOURCE,
    AlgorithmConfig,
    algorithm_names,
    algorithm_type,
    algorithms,
    complete_algorithm,
    names_under,
    written_out,
)
from posttrain.config.layers import Layers
from posttrain.config.presets import PRESETS
from posttrain.config.rules import check
from posttrain.config.schema import (
    FieldDoc,
    Path,
    Problem,
    Walker,
    combine,
    explain,
)
from posttrain.config.scorers import CheckConfig, JudgeConfig, RewardConfig
from posttrain.config.sections import (
    CheckpointConfig,
    CriticConfig,
    DataConfig,
    EvaluationConfig,
    GuardConfig,
    LoRAConfig,
    ModelConfig,
    ReferenceConfig,
    SampledPairsConfig,
    SamplingConfig,
    TeacherConfig,
    TrainConfig,
)
from posttrain.config.text import (
    REDACTED,
    dotted,
    leaves,
    read_mapping,
    read_override,
    redact,
    show,
    write_tree,
)
from posttrain.config.values import Part, PathText, as_list, as_whole, expand
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    pass

__all__ = [
    "PRESETS",
    "AlarmConfig",
    "AlgorithmConfig",
    "CheckConfig",
    "CheckpointConfig",
    "CriticConfig",
    "DataConfig",
    "EvaluationConfig",
    "GuardConfig",
    "JudgeConfig",
    "LoRAConfig",
    "ModelConfig",
    "ReferenceConfig",
    "Resolved",
    "RewardConfig",
    "RunConfig",
    "SampledPairsConfig",
    "SamplingConfig",
    "TeacherConfig",
    "TrainConfig",
    "check",
    "describe_fields",
    "json_schema",
    "load_config",
    "saved_tree",
    "setting_names",
    "to_yaml",
]


class RunConfig(Part):
    """Everything that a run depends on."""

    model: ModelConfig = Field(examples=["Qwen/Qwen3-0.6B"])
    """The model that is trained."""
    lora: LoRAConfig | None = None
    """Train low-rank adapters; null trains all weights."""
    reference: ReferenceConfig | None = None
    """The model that the policy is held to, for an algorithm that has one; null is the model that the run starts with,
    of which there is no second copy with lora or on given answers."""
    teacher: TeacherConfig | None = None
    """The teacher, for an algorithm that learns from one (distillation)."""
    critic: CriticConfig | None = None
    """The critic, for an algorithm that has one (ppo); null is one with default settings there."""
    algorithm: AlgorithmConfig = Field(examples=["grpo"])
    """The algorithm and its settings."""
    data: DataConfig = Field(examples=[{"train": "train.jsonl"}])
    """The prompts or examples."""
    rewards: list[RewardConfig] = []
    """What training maximises: the weighted sum. An entry that is a text stands for `{name: text}`, or for
    `{function: text}` where it has a dot: `[math, my_rewards.py:brevity]`."""
    check: list[CheckConfig] = []
    """An independent check: scores held-out answers, and a sample of those that the rewards accept (see alarms). It is
    never seen by training."""
    reward_model: dict[str, JsonValue] | None = None
    """A reward model to train first, on preference pairs: the settings of a run of its own (data and train at least),
    made in the folder reward_model of this run. Its algorithm is reward_model, model and seed are those of this run,
    unless given. An entry `{model: reward_model}` of rewards or check scores with it."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    sampled_pairs: SampledPairsConfig | None = None
    """For algorithms that learn from pairs: answer the prompts of data.train with the model that the run starts with,
    order the answers by rewards, and train on the pairs (pairs.jsonl in the run's folder). One round of iterative DPO;
    a pipeline repeats it. data.train may list pairs.jsonl of earlier rounds beside the prompts, to keep their pairs."""
    train: TrainConfig = Field(examples=[{"steps": 200}])
    """The optimizer and the size of a step."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save."""
    guards: GuardConfig = GuardConfig()
    """When to stop."""
    alarms: AlarmConfig = AlarmConfig()
    """What to watch, so that a reward which is gamed is noticed."""
    output: PathText | None = None
    """Folder of the run. null: the first free runs/<model>-<algorithm>-<n>."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(as_whole)] = 0
    """All randomness of the run is a function of it."""
    report: bool = True
    """Write report.html."""
    report_to: Annotated[list[Literal["tensorboard", "trackio", "wandb"]], BeforeValidator(as_list)] = []
    """Trackers that are told of the run while it goes on, by a process for each (`posttrain track` does so afterwards).
    The run folder is written in any case."""

    @property
    def has_dropout(self) -> bool:
        """Of adapters, while they are trained."""
        return self.lora is not None and self.lora.dropout > 0


DERIVED = {("algorithm", "max_completion_length"): ("sampling", "max_completion_length")}
"""Settings that are null unless given, and the setting that they then follow."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A configuration with the origin of every value."""

    config: RunConfig
    origins: Mapping[str, str]
    """Dotted path -> "default", "preset:NAME", "file:PATH", "command line", "caller" (Python) or "derived: PATH"."""


def load_config(
    source: str | PathLike[str] | Mapping[str, Any] | RunConfig,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    shared: Mapping[str, Any] | None = None,
    origin: str = "",
) -> Resolved:
    """The configuration of a run, from a YAML or TOML file (or a mapping, or a RunConfig) and overrides.

    Overrides are `a.b=value` with the value read as YAML, or a mapping with nested or dotted keys. Mappings are merged
    key by key, lists are replaced as a whole or changed by position (`rewards.0.weight=0.5`). `shared` are settings
    below those of the source, as the stages of a pipeline have them; `origin` says where a mapping was read.
    Raises ConfigError with everything that is wrong at once. Rules that span parts are `check`.
    """
    given, found_in = _read(source)
    origin, below = origin or found_in, _plain(shared or {})
    changes = _read_overrides(overrides)
    layers = Layers(expand=expand, written_out=written_out)
    shared_preset = below.pop("preset", None)
    in_file, asked_for = given.pop("preset", shared_preset), _take_presets(changes)
    preset = _known_preset(asked_for[-1] if asked_for else in_file)
    if preset:
        layers.put((), PRESETS[preset], f"preset:{preset}")
    layers.put((), below, origin)
    layers.put((), given, origin)
    if preset and asked_for:
        _refuse_another_algorithm(preset, layers)
        _refuse_covered(preset, layers)
    for key, value, who in changes:
        layers.put(layers.locate(key, walker()), value, who)
    if preset:
        _refuse_another_algorithm(preset, layers)
    return _resolve(layers, where=_place(origin) or "the configuration")


def _read(source: str | PathLike[str] | Mapping[str, Any] | RunConfig) -> tuple[dict[str, Any], str]:
    if isinstance(source, (str, PathLike)):
        return read_mapping(source), f"file:{os.fspath(source)}"
    if isinstance(source, (Mapping, RunConfig)):
        return _plain(source), "caller"
    raise ConfigError(
        given=f"a configuration of type {type(source).__name__}",
        allowed="the path of a YAML or TOML file, a mapping or a RunConfig",
        fix='For example posttrain.train("run.yaml").',
    )


def _read_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """(dotted key, value, who gave it), in their order."""
    if isinstance(overrides, Mapping):
        return [(str(key), _plain(value), "caller") for key, value in overrides.items()]
    texts = [overrides] if isinstance(overrides, str) else overrides
    return [(*read_override(text), "command line") for text in texts]


def _plain(value: Any) -> Any:
    """Python values as they would stand in a file; of a model only what was set."""
    if isinstance(value, AlgorithmConfig):
        defaults = complete_algorithm({"name": value.name})
        return {k: v for k, v in value.model_dump().items() if k == "name" or v != defaults[k]}
    if isinstance(value, BaseModel):
        return {
            name: _plain(getattr(value, name)) for name in type(value).model_fields if name in value.model_fields_set
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, PathLike) else value


def _take_presets(changes: list[tuple[str, Any, str]]) -> list[Any]:
    """The presets that overrides ask for, taken out of them: a preset is not a setting but where settings come from."""
    asked_for = [value for key, value, _ in changes if key == "preset"]
    changes[:] = [change for change in changes if change[0] != "preset"]
    return asked_for


def _known_preset(name: Any) -> str | None:
    if name is None or (isinstance(name, str) and name in PRESETS):
        return name
    close = difflib.get_close_matches(str(name), PRESETS, n=1)
    raise ConfigError(
        given=f"preset = {show(name)}",
        allowed=", ".join(PRESETS),
        fix=f"Did you mean {close[0]}?" if close else "Leave it out, or name one of these.",
    )


def _refuse_covered(preset: str, layers: Layers) -> None:
    """A preset stands below the file: asked for on the command line, it must not silently do nothing."""
    covered = [(path, value) for path, value in leaves(PRESETS[preset]) if layers.at(path) != value]
    if covered:
        raise ConfigError(
            given=f"preset={preset}, but the file goes before it and gives {', '.join(dotted(p) for p, _ in covered)}",
            allowed="a preset whose values the file leaves open",
            fix="Give the values themselves: " + " ".join(f"{dotted(path)}={show(value)}" for path, value in covered),
        )


def _refuse_another_algorithm(preset: str, layers: Layers) -> None:
    """The settings of a preset's algorithm must not end up under the name of another one."""
    path = ("algorithm", "name")
    own, named = PRESETS[preset].get("algorithm", {}).get("name"), layers.at(path)
    if own is not None and named != own:
        raise ConfigError(
            given=f"preset {preset} stands for algorithm {own} with settings of its own, but "
            f"{_place(layers.source(path)) or 'the configuration'} names algorithm {show(named)}",
            allowed=f"the preset, or algorithm.name = {show(named)}",
            fix="Leave one of the two out; beside the preset, algorithm takes single settings: algorithm.kl_coef=0.01.",
        )


def _resolve(layers: Layers, where: str) -> Resolved:
    config = _validate(layers, where)
    for target, follows in DERIVED.items():
        if _get(config, target, default="") is None:
            layers.put(target, _get(config, follows), f"derived: {dotted(follows)}")
            config = _validate(layers, where)
    origins = {dotted(path): layers.origins.get(path, "default") for path, _ in leaves(config.model_dump(mode="json"))}
    return Resolved(config=config, origins=origins)


def _get(config: RunConfig, path: Path, default: Any = None) -> Any:
    return functools.reduce(lambda part, name: getattr(part, str(name), default), path, config)


def _validate(layers: Layers, where: str) -> RunConfig:
    problems = [_was_redacted(path) for path, value in leaves(layers.tree) if REDACTED in str(value)]
    try:
        config = RunConfig.model_validate(layers.tree)
    except ValidationError as error:
        problems += explain(error, walker(), setting_names, own=lambda: names_under(layers.tree.get("algorithm")))
    if problems:
        raise combine(problems, where, lambda path: _place(layers.source(path))) from None
    return config


def _place(origin: str) -> str:
    return "" if origin == "caller" else origin.removeprefix("file:")


def _was_redacted(path: Path) -> Problem:
    name = dotted(path)
    return Problem(
        path=path,
        given=f"{name} held a secret, which was not saved",
        allowed="the value itself",
        fix=f"Let the function read it from an environment variable, or give it again: {name}=...",
    )


@functools.cache
def walker() -> Walker:
    return Walker(RunConfig.model_json_schema())


def describe_fields() -> tuple[FieldDoc, ...]:
    """Every setting: path, type, default and documentation. Settings of the algorithms are in `posttrain explain`."""
    return walker().fields


def setting_names(algorithm: str | None = None) -> list[str]:
    """The dotted paths of all settings, positions in lists left out; with those of one algorithm, or of all."""
    own = ["preset", *(doc.path.replace(".N", "") for doc in describe_fields())]
    names = algorithm_names() if algorithm is None else [algorithm]
    of_algorithms = [doc.path for name in names for doc in SOURCE.get().walker(name).fields]
    return list(dict.fromkeys([*own, *(f"algorithm.{path}" for path in of_algorithms)]))


def json_schema() -> dict[str, Any]:
    """JSON schema of a configuration file, for editors: every algorithm with its own settings, and the presets."""
    schema = copy.deepcopy(dict(walker().root))
    definitions = schema["$defs"]
    choices: list[dict[str, Any]] = [{"enum": list(algorithms())}]
    for name in algorithms():
        settings = copy.deepcopy(dict(algorithm_type(name)[1].root))
        definitions |= settings.pop("$defs", {})
        settings["properties"] = {"name": {"const": name}, **settings.get("properties", {})}
        choices.append(settings | {"required": ["name", *settings.get("required", [])]})
    definitions["AlgorithmConfig"] = {"anyOf": choices}
    for shorthand in ("ModelConfig", "ReferenceConfig", "TeacherConfig", "RewardConfig", "CheckConfig"):
        definitions[shorthand] = {"anyOf": [{"type": "string"}, definitions[shorthand]]}
    schema["properties"] = {"preset": {"enum": list(PRESETS)}, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def to_yaml(resolved: Resolved) -> str:
    """The complete configuration, each value with its origin behind it; it loads back to the same configuration.

    Secrets in free-form settings are saved as <redacted>; such a file asks for them when it is loaded.
    """
    tree = saved_tree(resolved.config)
    return "# All settings of this run, each with where its value came from.\n" + write_tree(tree, resolved.origins)


def saved_tree(config: RunConfig) -> dict[str, Any]:
    """Every setting as it is saved: plain data, with secrets in free-form settings as <redacted>."""
    tree = config.model_dump(mode="json")
    for reward in [*tree["rewards"], *tree["check"]]:
        reward["settings"] = redact(reward["settings"])
        if reward["judge"] is not None:
            reward["judge"]["request"] = redact(reward["judge"]["request"])
    tree["model"]["chat_template_kwargs"] = redact(tree["model"]["chat_template_kwargs"])
    return tree
