"""The five questions, their answers, and the checks of the answers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.verify import read_table

TINY = "tiny"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, for the terminal and for --help."""

    key: str
    text: str
    default: str
    choices: Mapping[str, str] = field(default_factory=dict)
    """Allowed answer -> its meaning. Empty if any text is allowed."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Synonym of an answer -> the answer."""

    def check(self, answer: str) -> str:
        """Return the answer, with synonyms resolved. Raises a ConfigError that lists the allowed answers."""
        answer = self.others.get(answer, answer)
        if not self.choices or answer in self.choices:
            return answer
        close = difflib.get_close_matches(answer, [*self.choices, *self.others], n=1)
        raise ConfigError(
            given=f"--{self.key} {answer}",
            allowed=", ".join([*self.choices, *self.others]),
            fix=f"Did you mean {close[0]}?" if close else f"The default is {self.default}.",
        )


CATALOGUE: Mapping[str, Any] = read_table(Path(__file__).with_name("kinds.yaml"))
QUESTIONS = tuple(Question(**told) for told in CATALOGUE["questions"])
"""All questions, in the order in which they are asked."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to all questions, checked."""

    data: str = "answers"
    model: str = TINY
    where: str = "auto"
    goal: str = "balance"
    folder: Path = Path("my-run")

    def __post_init__(self) -> None:
        for question in QUESTIONS:
            object.__setattr__(self, question.key, question.check(str(getattr(self, question.key))))
        object.__setattr__(self, "folder", Path(self.folder))
        object.__setattr__(self, "model", find_model(self.model))

    @property
    def tiny(self) -> bool:
        return self.model == TINY


def find_model(name: str) -> str:
    """Return the model's name for the config. A folder becomes an absolute path: the run starts in another folder."""
    folder = Path(name).expanduser()
    if name == TINY:
        return name
    if folder.is_dir():
        if (folder / "config.json").is_file():
            return str(folder.resolve())
        raise ConfigError(
            given=f"--model {name}: the folder has no config.json",
            allowed="a Hugging Face folder, with config.json, weights and tokenizer",
            fix="For the model of a run, name checkpoints/step-NNNNNN/model in the run's folder.",
        )
    if HUB_NAME.fullmatch(name) and not name.startswith("."):
        return name
    raise ConfigError(
        given=f"--model {name}: there is no such folder, and it is not a name on the Hugging Face Hub",
        allowed="a folder, a name such as Qwen/Qwen3-0.6B, or tiny",
        fix="Use --model tiny to see a full run now, and put another model into config.yaml later.",
    )


def note_on(model: str) -> str:
    """Say that a model (of `find_model`) is not on this machine. A misspelt folder would look the same."""
    if model == TINY or Path(model).is_absolute():
        return ""
    return f"{model} is not a folder here: the run takes it as a name on the Hugging Face Hub."
