"""The records that the readers of foreign files return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posttrain.errors import ConfigError

FORMS: Mapping[str, Any] = yaml.load(
    Path(__file__).with_name("forms.yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
TRL, VERL, LORA = "TRL", "verl", "LoraConfig"
VERBS: Mapping[str, str] = {verb: form for form, told in FORMS[TRL].items() for verb in told.get("verbs", ())}
"""`grpo`, as TRL's command line and its example scripts call it -> GRPOConfig."""


@dataclass(frozen=True)
class Unread:
    """A value that only running the script would tell."""

    source: str

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True)
class Given:
    """The given value of a setting; line 0 marks a default of the other library."""

    value: Any
    line: int = 0


@dataclass
class Source:
    """The settings of a file, by the names that the other library has for them."""

    project: str
    form: str
    settings: dict[str, Given] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    """Other records that the file holds: LoraConfig."""
    remarks: list[tuple[int, str]] = field(default_factory=list)
    """(line, what was seen there beside settings)."""
    to_do: list[tuple[int, str]] = field(default_factory=list)
    """(line, what has to be done before the config can be used)."""
    devices: int = 1
    """Processes that the command starts."""


def form_of(verb: str) -> str | None:
    """The form that `grpo`, or an example script of that name, is about."""
    return VERBS.get(verb.lower().replace("-", "_"))


def nothing_found(path: Path, looked_for: str) -> ConfigError:
    return ConfigError(
        given=f"{path} holds no config that is known",
        allowed=looked_for,
        fix=f"Say what the file trains: posttrain convert {path} --as {'|'.join(VERBS)}.",
    )
