"""The settings of a run: the sections, the origin of each value, and the rules that span several sections.

    load_config("run.yaml", ["train.learning_rate=1e-6"])  ->  Resolved(config, origins)

Precedence: default < preset < file < command line. The models are frozen, so a printed configuration is the given one.
The text under a field is its documentation in all places that describe the setting.

Modules from bottom to top: text (YAML, TOML, lines), names (of other libraries), schema (allowed values, in words),
values, sections, scorers, algorithm, run (all sections), rules, load; then pipeline (several runs) and page
(docs/config.md).
"""

from posttrain.config.algorithm import AlgorithmConfig
from posttrain.config.load import (
    Resolved,
    check,
    check_over,
    check_recorded,
    load_config,
    reward_model_config,
    saved_tree,
    to_yaml,
)
from posttrain.config.presets import PRESETS
from posttrain.config.run import (
    REWARD_MODEL,
    RunConfig,
    describe_fields,
    functions_named,
    in_folder,
    json_schema,
    models_named,
    setting_names,
)
from posttrain.config.scorers import CheckConfig, JudgeConfig, RewardConfig
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
from posttrain.config.values import split_form

__all__ = [
    "PRESETS",
    "REWARD_MODEL",
    "AgentConfig",
    "AlarmConfig",
    "AlgorithmConfig",
    "CheckConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "CriticConfig",
    "DataConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "GuardConfig",
    "JudgeConfig",
    "LoRAConfig",
    "ModelConfig",
    "ReferenceConfig",
    "Resolved",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SampledPairsConfig",
    "SamplingConfig",
    "TeacherConfig",
    "TrainConfig",
    "check",
    "check_over",
    "check_recorded",
    "describe_fields",
    "functions_named",
    "in_folder",
    "json_schema",
    "load_config",
    "models_named",
    "reward_model_config",
    "saved_tree",
    "setting_names",
    "split_form",
    "to_yaml",
]
