"""Records that the readers of other libraries' files return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posttrain.errors import ConfigError
from posttrain.shown import shown

FORMS: Mapping[str, Any] = yaml.load(
    Path(__file__).with_name("forms.yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
TRL, VERL, LORA = "TRL", "verl", "LoraConfig"
VERBS: Mapping[str, str] = {verb: form for form, told in FORMS[TRL].items() for verb in told.get("verbs", ())}
"""Name in TRL's command line and example scripts, such as `grpo` -> form, such as GRPOConfig."""


@dataclass(frozen=True)
class Unread:
    """A value that is known only when the script runs."""

    source: str

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True)
class Given:
    """A setting's value and its line in the file. Line 0 marks a default of the other library."""

    value: Any
    line: int = 0


@dataclass
class Source:
    """The settings of a file, under the names of the other library."""

    project: str
    form: str
    settings: dict[str, Given] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    """Names of further records in the file, such as LoraConfig."""
    remarks: list[tuple[int, str]] = field(default_factory=list)
    """(line, a remark on something there that is not a setting)."""
    to_do: list[tuple[int, str]] = field(default_factory=list)
    """(line, a task to do before the config can be used)."""
    devices: int | Unread = 1
    """Number of processes that the command starts. Unread holds the reason why the file does not tell it."""


def form_of(verb: str) -> str | None:
    """Return the form for a command such as `grpo`, or for an example script of that name."""
    return VERBS.get(verb.lower().replace("-", "_"))


def nothing_found(path: Path, looked_for: str, verb: str = "") -> ConfigError:
    """Return the error for a file without a config. `verb` is what --as already says."""
    say = f"Say what the file trains: posttrain convert {shown(path)} --as {'|'.join(VERBS)}."
    write = "Write the settings into a YAML file, one a line, under the names of the other library."
    return ConfigError(given=f"{path} holds no known config", allowed=looked_for, fix=write if verb else say)
