"""The choices on the page other than the algorithms: each with its values and labels."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.config import load_config
from posttrain.config.sections import BATCH_ROWS, MICROBATCH_TOKENS
from posttrain.config.text import show
from posttrain.lab.advise.guides import from_rewards, samples
from posttrain.lab.advise.starter import defaults_of
from posttrain.lab.plan.api import from_flags, target_of, workload_for
from posttrain.lab.plan.architecture import size_classes
from posttrain.lab.plan.hardware import devices
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.workload import ASSUMED_PROMPT, sampling_of_ranks
from posttrain.verify import read_table

MODELS = ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "70b", "30b-a3b", "235b-a22b")
TOKENS = (512, 2048, 8192, 32768)
GROUPS = (8, 16, 64)
GPUS = (1, 2, 4, 8, 64)
DEVICES = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100", "h200", "b200", "mi300x")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A field of the form."""

    name: str
    label: str
    values: Mapping[str, str]
    """Value in the page's URL -> its label."""
    start: str
    said: str = "{}"
    """Template for a value in the summary of a selection."""
    switch: bool = False
    """True if it is drawn as a row of buttons instead of a list."""
    online: bool = False
    """True if it applies only to algorithms that sample."""
    hardware: bool = False
    """True if it belongs to the hardware section of the form."""


def model_label(size: str) -> str:
    """Return a label with the size and the published model that represents it.

    >>> model_label("30b-a3b")
    '30B, 3B active: Qwen3-30B-A3B'
    """
    known = size_classes()[size]
    total, _, active = size.upper().partition("-A")
    return f"{total}{f', {active} active' if active else ''}: {known['model'].partition('/')[2]}"


@functools.cache
def words() -> Mapping[str, Any]:
    """Return the content of words.yaml."""
    return read_table(Path(__file__).with_name("words.yaml"))


@functools.cache
def choices() -> Mapping[str, Choice]:
    """Map names to choices, in the order of the form."""
    counted = {
        "model": {size: model_label(size) for size in MODELS},
        "tokens": {str(tokens): f"{tokens:,} tokens" for tokens in TOKENS},
        "group": {str(size): str(size) for size in GROUPS},
        "gpus": {str(count): f"{count} GPU{'s' * (count > 1)}" for count in GPUS},
        "device": {key: devices()[key].title.removeprefix("NVIDIA ") for key in DEVICES},
    }
    offered = words()["choices"].items()
    return {name: Choice(name=name, **{**told, "values": told["values"] or counted[name]}) for name, told in offered}


# --- what a selection means for the planner --------------------------------------------------------------------------


Selection = Mapping[str, str]
"""Name of a choice -> value."""

LORA_RANK = 16
KL_COEF = 0.04
"""KL weight. Any weight other than 0 requires a reference model."""
SCALES = ("checkpointing", "group", "gpus")
"""Choices that change a single field of the workload. The other choices need a new configuration."""

Settings = Mapping[str, Any]


def settings_by_value(kind: type[Algorithm]) -> dict[str, dict[str, Settings]]:
    """Map choice -> value -> settings in addition to model and algorithm. `SIZE` stands for the chosen model size.

    All GPUs share one copy of the weights. With `train.shard=auto`, which depends on the memory and the links of a
    device, the numbers would differ by device.
    """
    found: dict[str, dict[str, Settings]] = {
        "precision": {name: {"model.precision": name} for name in ("bfloat16", "float32")},
        "weights": {"lora": {"lora.rank": LORA_RANK}},
        "checkpointing": {"on": {"train.gradient_checkpointing": True}},
        "tokens": {str(tokens): _lengths(kind, tokens) for tokens in TOKENS},
        "gpus": {str(count): {"train.devices": count, "train.shard": count} for count in GPUS if count > 1},
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


def fixed_settings(kind: type[Algorithm]) -> Settings:
    """Return the settings of every selection. The batch sizes are those for a CPU, because `auto` would choose
    different sizes for each device."""
    rows = {"sampling.max_batch_rows": BATCH_ROWS} if samples(kind) else {}
    return {"train.tokens_per_microbatch": MICROBATCH_TOKENS, **rows}


def settings_of(key: str, chosen: Selection) -> dict[str, Any]:
    """Return the settings of a selection for `posttrain plan`, without model and algorithm."""
    told = dict(fixed_settings(ALGORITHMS[key]))
    for choice, values in settings_by_value(ALGORITHMS[key]).items():
        told |= values.get(chosen[choice], {})
    return _with_size(dict(sorted(told.items())), chosen["model"])


def _with_size(settings: Any, size: str) -> Any:
    """Replace every `SIZE` by the model size."""
    if isinstance(settings, dict):
        return {name: _with_size(value, size) for name, value in settings.items()}
    if isinstance(settings, list):
        return [_with_size(value, size) for value in settings]
    return size if settings == "SIZE" else settings


def written(settings: Settings) -> str:
    """Format settings for the command line."""
    return " ".join(shlex.quote(f"{name}={show(value)}") for name, value in settings.items())


def devices_of(chosen: Selection) -> str:
    """Return the value of `posttrain plan --gpus` for a selection."""
    return f"{chosen['gpus']}x{chosen['device']}"


def workload(key: str, chosen: Selection) -> Workload:
    """Return the planner's workload for a selection. Those that differ only in `SCALES` share one configuration."""
    read = {name: value for name, value in chosen.items() if name not in SCALES}
    made = _read(key, tuple(sorted(read.items())))
    ranks, online = int(chosen["gpus"]), made.data_kind == "prompts"
    return replace(
        made,
        gradient_checkpointing=chosen["checkpointing"] == "on",
        group_size=int(chosen["group"]) if online else made.group_size,
        ranks=ranks,
        sharding="full" if ranks > 1 else "none",
        **(sampling_of_ranks() if online and ranks > 1 else {}),
    )


@functools.lru_cache(maxsize=8)
def _read(key: str, chosen: tuple[tuple[str, str], ...]) -> Workload:
    """Return the workload on one device. Choices in `SCALES` change fastest, so a cache of few entries is enough."""
    selection = {**dict(chosen), "checkpointing": "off", "group": "8", "gpus": "1"}
    config = load_config(from_flags(selection["model"], key), settings_of(key, selection)).config
    return workload_for(config, target_of(config, devices_of(selection)))
