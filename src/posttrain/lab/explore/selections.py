"""What a selection on the page means for the planner: settings of a configuration, and devices."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.config import load_config
from posttrain.config.text import show
from posttrain.lab.advise.guides import from_rewards, samples
from posttrain.lab.advise.starter import defaults_of
from posttrain.lab.explore.choices import GROUPS, MODELS, TOKENS
from posttrain.lab.plan.api import from_flags, target_of, workload_for
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.workload import ASSUMED_PROMPT

Selection = Mapping[str, str]
"""Name of a choice -> value."""

LORA_RANK = 16
KL_COEF = 0.04
"""Any weight that is not 0 brings a reference."""
SCALES = ("checkpointing", "group", "gpus")
"""Choices that are one field of the workload each; for the others a configuration is read."""

Settings = Mapping[str, Any]


def settings_by_value(kind: type[Algorithm]) -> dict[str, dict[str, Settings]]:
    """Choice -> value -> what is set for it beside model and algorithm; `SIZE` stands for that of the model."""
    found: dict[str, dict[str, Settings]] = {
        "precision": {name: {"model.precision": name} for name in ("bfloat16", "float32")},
        "weights": {"lora": {"lora.rank": LORA_RANK}},
        "checkpointing": {"on": {"train.gradient_checkpointing": True}},
        "tokens": {str(tokens): _lengths(kind, tokens) for tokens in TOKENS},
    }
    if samples(kind):
        found["group"] = {str(size): {"sampling.group_size": size} for size in GROUPS}
    if from_rewards(kind):
        found["reward"] = {"model": {"rewards": [{"model": "SIZE"}]}}
    if "kl_coef" in defaults_of(kind) and "reference" not in kind().needs:
        found["kl"] = {"on": {"algorithm.kl_coef": KL_COEF}}
    if "teacher" in kind().needs:
        found["model"] = {size: {"teacher.path": "SIZE"} for size in MODELS}
    return found


def _lengths(kind: type[Algorithm], tokens: int) -> Settings:
    if samples(kind):
        return {"sampling.max_completion_length": tokens}
    return {"data.max_length": ASSUMED_PROMPT + tokens}


def settings_of(key: str, chosen: Selection) -> dict[str, Any]:
    """What a selection sets beside model and algorithm, as `posttrain plan` takes it."""
    told: dict[str, Any] = {}
    for choice, values in settings_by_value(ALGORITHMS[key]).items():
        told |= values.get(chosen[choice], {})
    return yaml.safe_load(yaml.safe_dump(told).replace("SIZE", chosen["model"]))


def written(settings: Settings) -> str:
    """As on the command line."""
    return " ".join(shlex.quote(f"{name}={show(value)}") for name, value in settings.items())


def devices_of(chosen: Selection) -> str:
    """As `posttrain plan --gpus` takes it."""
    return f"{chosen['gpus']}x{chosen['device']}"


def workload(key: str, chosen: Selection) -> Workload:
    """What the planner makes of a selection; only once for all that is but a size of the same run."""
    read = {name: value for name, value in chosen.items() if name not in SCALES}
    made = _read(key, tuple(sorted(read.items())))
    ranks, online = int(chosen["gpus"]), made.data_kind == "prompts"
    return replace(
        made,
        gradient_checkpointing=chosen["checkpointing"] == "on",
        group_size=int(chosen["group"]) if online else made.group_size,
        ranks=ranks,
        sharding="full" if ranks > 1 else "none",
    )


@functools.lru_cache(maxsize=1)
def _read(key: str, chosen: tuple[tuple[str, str], ...]) -> Workload:
    """Of one device. The grid is walked so that the choices in `SCALES` change fastest: one memory is enough."""
    selection = {**dict(chosen), "checkpointing": "off", "group": "8", "gpus": "1"}
    config = load_config(from_flags(selection["model"], key), settings_of(key, selection)).config
    return workload_for(config, target_of(config, devices_of(selection)))
