"""Complete examples as projects: a real model improves on a task in two runs."""

from __future__ import annotations

import importlib.resources
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

import yaml

from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.lab.init.project import Project, write_project
from posttrain.lab.init.questions import TINY, find_model, note_on
from posttrain.lab.init.siblings import siblings


class Example(NamedTuple):
    """The parts of an example other than the files in its folder."""

    data: Callable[[], Mapping[str, str]]
    """Function that returns the data files: name -> content."""
    algorithm: str
    reason: str
    commands: tuple[str, ...]
    """Commands to type next, in order. $model stands for the model."""


EXAMPLES: Mapping[str, Example] = {
    "siblings": Example(
        data=lambda: siblings().files(),
        algorithm="sft, then grpo",
        reason="SFT teaches the form of an answer, a number alone. GRPO teaches which number.",
        commands=(
            "posttrain data answers $model plain.jsonl -o replay.jsonl --max-completion-length 48",
            "posttrain train sft.yaml",
            "posttrain reward test grpo.yaml data.train=train.jsonl",
            "posttrain train grpo.yaml",
        ),
    )
}
RUNS = ("sft.yaml", "grpo.yaml")
"""The configs of an example, in order."""


def make_example(name: str, model: str, folder: Path) -> Project:
    """Write the example into a folder. Raises ConfigError for an invalid name or model, or if one of its files already
    exists."""
    if name not in EXAMPLES:
        raise ConfigError(
            given=f"--example {name}", allowed=", ".join(EXAMPLES), fix=f"Set --example {next(iter(EXAMPLES))}."
        )
    if model == TINY:
        raise ConfigError(
            given=f"--example {name} with the tiny model, which only reads letters",
            allowed="a chat model: its folder, or its name on the Hugging Face Hub",
            fix="Set --model HuggingFaceTB/SmolLM2-135M-Instruct, or see docs/first-model.md.",
        )
    example, found = EXAMPLES[name], find_model(model)
    commands = [Template(command).substitute(model=shlex.quote(found)) for command in example.commands]
    texts = {file: Template(_read(name, file)).safe_substitute(model=found) for file in RUNS}
    for text in texts.values():
        check(load_config(yaml.safe_load(text)).config)
    readme = Template(_read(name, "README.md")).substitute(model=found, commands="\n".join(commands))
    texts |= {"reward.py": _read(name, "reward.py"), **example.data(), "README.md": readme}
    return write_project(
        folder,
        texts,
        algorithm=example.algorithm,
        reason=example.reason,
        commands=commands,
        note=note_on(found),
    )


def _read(name: str, file: str) -> str:
    return (importlib.resources.files("posttrain.lab.init") / "examples" / name / file).read_text(encoding="utf-8")
