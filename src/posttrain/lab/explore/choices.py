"""What can be chosen on the page beside the algorithms: each choice with its values, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from posttrain.lab.plan.architecture import size_classes
from posttrain.lab.plan.hardware import devices

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
    """What stands in the address of the page -> what is read."""
    start: str
    said: str = "{}"
    """How the sentence that sums a selection up speaks of a value."""
    switch: bool = False
    """Drawn as buttons side by side instead of a list."""
    online: bool = False
    """Of no meaning where nothing is sampled."""
    hardware: bool = False
    """Stands with the hardware in the form."""


def model_label(size: str) -> str:
    """The size, and the published model that stands for it.

    >>> model_label("30b-a3b")
    '30B, 3B active: Qwen3-30B-A3B'
    """
    known = size_classes()[size]
    total, _, active = size.upper().partition("-A")
    return f"{total}{f', {active} active' if active else ''}: {known['model'].partition('/')[2]}"


OFFERED = (
    Choice(name="model", label="Model", values={size: model_label(size) for size in MODELS}, start="7b"),
    Choice(
        name="weights",
        label="Training",
        values={"all": "all weights", "lora": "LoRA"},
        start="all",
        switch=True,
    ),
    Choice(
        name="precision",
        label="Computed in",
        values={"bfloat16": "bfloat16", "float32": "float32"},
        start="bfloat16",
        switch=True,
    ),
    Choice(
        name="checkpointing",
        label="Checkpointing",
        values={"off": "off", "on": "on"},
        start="on",
        said="checkpointing {}",
        switch=True,
    ),
    Choice(
        name="tokens",
        label="Longest completion",
        values={str(tokens): f"{tokens:,} tokens" for tokens in TOKENS},
        start="2048",
        said="completions of {}",
    ),
    Choice(
        name="group",
        label="Group size",
        values={str(size): str(size) for size in GROUPS},
        start="8",
        said="groups of {}",
        online=True,
    ),
    Choice(
        name="reward",
        label="Rewards from",
        values={"program": "program", "model": "model"},
        start="program",
        said="rewards from a {}",
        switch=True,
        online=True,
    ),
    Choice(
        name="kl",
        label="KL to a reference",
        values={"default": "by default", "on": "always"},
        start="default",
        said="KL to a reference {}",
        switch=True,
        online=True,
    ),
    Choice(
        name="gpus",
        label="How many",
        values={str(count): f"{count} GPU{'s' * (count > 1)}" for count in GPUS},
        start="8",
        hardware=True,
    ),
    Choice(
        name="device",
        label="GPU",
        values={key: devices()[key].title.removeprefix("NVIDIA ") for key in DEVICES},
        start="h100",
        said="{} each",
        hardware=True,
    ),
)
"""In the order of the form."""


def choices() -> Mapping[str, Choice]:
    """Name -> choice."""
    return {choice.name: choice for choice in OFFERED}
