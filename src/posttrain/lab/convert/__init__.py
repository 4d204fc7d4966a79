"""`posttrain convert`: convert a TRL script, the YAML of TRL's command line or a verl config to a posttrain config.

    conversion = convert("train_grpo.py")
    print(conversion.text)          YAML, with a comment where a setting differs
    conversion.open                 decisions to make before the config can be used

Scripts are parsed and never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.config import RunConfig, check, load_config
from posttrain.config.text import write_tree
from posttrain.errors import ConfigError
from posttrain.files import write_atomically
from posttrain.lab.convert.meaning import Meaning, meaning_of
from posttrain.lab.convert.records import FORMS, Source
from posttrain.lab.convert.sources import read_source

ORDER = ("preset", *RunConfig.model_fields)
"""Order of the sections in the YAML file."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A posttrain config, and the settings that it could not take over."""

    project: str
    form: str
    text: str
    """The YAML file."""
    settings: Mapping[str, Any]
    """The config as a tree."""
    notes: tuple[str, ...]
    """Settings without a counterpart, each with its line."""
    open: tuple[str, ...]
    """Decisions to make before the config can be used; empty if there are none."""

    def summary(self, to: Path | None = None) -> str:
        """Return one or two lines: what was read, and what is left to do."""
        told = f"{self.form} of {self.project}. Not taken over: {len(self.notes)}. "
        told += f"To decide: {len(self.open)}." if self.open else "The config is ready to use."
        return f"{told}\nWritten to {to}." if to else told

    def to_json(self) -> dict[str, Any]:
        return {
            "project": self.project,
            "form": self.form,
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "open": list(self.open),
            "text": self.text,
        }


def convert(
    path: str | PathLike[str], *, form: str = "", rows: int | None = None, devices: int | None = None
) -> Conversion:
    """Convert the config in a TRL or verl file to a posttrain config.

    `form` names the algorithm (grpo, dpo, kto ...), if the file does not. `rows` is the number of training rows, to
    convert passes over the data to steps. `devices` is the number of processes that the other library was started
    with, if no command in the file gives it. Raises ConfigError for a file that cannot be read or that holds no known
    config.
    """
    source = read_source(Path(path), form)
    meaning = meaning_of(source, rows=rows, devices=devices or source.devices)
    tree = _tree(meaning.settings)
    notes = [str(note) for note in sorted(meaning.notes, key=lambda note: note.line)]
    notes += [f"line {line}: {text}." for line, text in sorted(source.remarks)]
    refused = _refused(tree)
    if any("train.steps" in text for text in meaning.open):
        refused = [text for text in refused if not text.startswith("train.steps is missing")]
    to_do = [f"line {line}: {text}." for line, text in sorted(source.to_do)]
    undecided = [*meaning.open, *to_do, *refused]
    return Conversion(
        project=source.project,
        form=source.form,
        text=_text(Path(path), source, meaning, tree, notes, undecided),
        settings=tree,
        notes=tuple(notes),
        open=tuple(undecided),
    )


def write(conversion: Conversion, path: Path) -> None:
    """Write the file. Raises ConfigError if it already exists."""
    if path.exists():
        raise ConfigError(given=f"{path} exists", allowed="a file that does not exist yet", fix="Name another file.")
    write_atomically(path, conversion.text)


def _tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted keys into sections, in the order of the documentation."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            if not isinstance(node.get(section), dict):
                node[section] = {}
            node = node[section]
        if value != {} or last not in node:  # `lora: {}` switches adapters on, and keeps their settings
            node[last] = value
    return {name: tree[name] for name in ORDER if name in tree}


def _refused(tree: Mapping[str, Any]) -> list[str]:
    """Return the errors that loading or checking the config raises."""
    try:
        check(load_config(tree))
    except ConfigError as error:
        several = re.split(r"\n +\d+\. ", str(error))
        return [" ".join(text.split()) for text in several[1:] or several]
    return []


def _text(
    path: Path, source: Source, meaning: Meaning, tree: Mapping[str, Any], notes: list[str], undecided: list[str]
) -> str:
    form = FORMS[source.project][source.form]
    version = form.get("version", FORMS["version"][source.project])
    parts = [f"# From {path.name}: {source.form} of {source.project}. Defaults are those of {version}."]
    parts += _block("Before you can use it:", undecided)
    parts += [write_tree(tree, meaning.comments).rstrip("\n")]
    parts += _block("Always different:", form.get("differs", []))
    parts += _block("Not taken over:", notes)
    return "\n".join(parts) + "\n"


def _block(title: str, lines: list[str]) -> list[str]:
    return ["#", f"# {title}", *(f"#   {' '.join(line.split())}" for line in lines)] if lines else []
