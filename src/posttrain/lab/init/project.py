"""Writes a project folder: config.yaml, a reward or environment, sample data, and a README.md."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.files import write_atomically
from posttrain.lab.init.questions import CATALOGUE, QUESTIONS, Answers, note_on
from posttrain.lab.init.samples import Row, Sample, sample
from posttrain.lab.init.settings import CHAT, SAMPLED, Recommendation, config_text, lines_of, recommend, settings_of


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project that was written."""

    folder: Path
    files: tuple[str, ...]
    algorithm: str
    reason: str
    commands: tuple[str, ...]
    """Commands to type next, in order."""
    note: str = ""
    """What may not be as expected."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    def render(self) -> str:
        written = f"{self.folder}: {', '.join(self.files)}"
        lines = [written, f"algorithm {self.algorithm}: {self.reason}", *filter(None, [self.note])]
        return "\n".join([*lines, "Now:", *(f"  {c}" for c in self.commands)])


def make_project(answers: Answers) -> Project:
    """Write the project. If one of its files already exists, write nothing and raise ConfigError."""
    found = recommend(answers)
    texts = project_files(answers, found)
    return write_project(
        answers.folder,
        texts,
        algorithm=found.algorithm,
        reason=found.reason,
        commands=commands_of(answers),
        note=note_on(answers.model),
    )


def write_project(
    folder: Path, texts: Mapping[str, str], *, algorithm: str, reason: str, commands: Sequence[str], note: str = ""
) -> Project:
    """Write files (name -> content). If one of them already exists, write nothing and raise ConfigError."""
    present = [name for name in texts if (folder / name).exists()]
    if present or folder.is_file():
        raise ConfigError(
            given=f"{folder} holds {', '.join(present)}" if present else f"{folder} is a file",
            allowed="a folder without these files, because nothing is overwritten",
            fix="Name another folder: posttrain init another-name.",
        )
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return Project(
        folder=folder,
        files=tuple(texts),
        algorithm=algorithm,
        reason=reason,
        commands=(f"cd {folder}", *commands),
        note=note,
    )


def project_files(answers: Answers, found: Recommendation) -> dict[str, str]:
    """Return the files of the project (name -> content). Raises ConfigError if the config is not valid."""
    lines, rows = lines_of(answers, found), sample(answers.data, tiny=answers.tiny)
    check(load_config(settings_of(lines)).config)
    return {
        "config.yaml": config_text(lines, "posttrain train config.yaml        README.md says what to expect"),
        **_programs(answers),
        "train.jsonl": _json_lines(rows.train),
        "eval.jsonl": _json_lines(rows.eval),
        "README.md": readme_text(answers, found, rows),
    }


def _programs(answers: Answers) -> dict[str, str]:
    """Return the reward or the environment, and the chat template for the tiny model in several turns."""
    if answers.data not in SAMPLED:
        return {}
    tiny, own = "_tiny" * answers.tiny, answers.data == "environment"
    files = {"environment.py" if own else "reward.py": _template(f"{answers.data}{tiny}.py")}
    return files | ({CHAT: _template("chat_tiny.jinja")} if own and answers.tiny else {})


def _template(name: str) -> str:
    return (importlib.resources.files("posttrain.lab.init") / "templates" / name).read_text(encoding="utf-8")


def _json_lines(rows: Sequence[Row] | Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# --- README.md -------------------------------------------------------------------------------------------------------


_REAL = (
    "The few sample rows only show that everything works; `train.steps=2 train.warmup_steps=0` is enough for that.\n"
    "They do not make a better model. Put in your own data before you judge what it learns."
)
_TESTS = (
    "`reward test` shows whether the reward separates\nright from wrong, and whether this model can learn from it. "
)
_MEMORY = "`posttrain plan config.yaml` predicts whether the run fits in memory and how long it takes.\n"


def commands_of(answers: Answers) -> tuple[str, ...]:
    """The commands to type in the project's folder, in order."""
    tried = ("posttrain reward test config.yaml",) if answers.data in SAMPLED else ()
    return ("posttrain data check train.jsonl", *tried, "posttrain train config.yaml")


def readme_text(answers: Answers, found: Recommendation, rows: Sample) -> str:
    """Return the README of a project."""
    words = CATALOGUE["kinds"][answers.data]
    kind = next(question for question in QUESTIONS if question.key == "data").choices[answers.data]
    return Template(_template("README.md")).substitute(
        name=answers.folder.resolve().name,
        kind=kind[0].upper() + kind[1:],
        model="the built-in tiny model" if answers.tiny else f"the model `{answers.model}`",
        algorithm=found.algorithm,
        reason=found.reason,
        commands="\n".join(commands_of(answers)),
        tests=_TESTS if answers.data in SAMPLED else "",
        memory="" if answers.tiny else _MEMORY,
        rows=len(rows.train),
        held_out=len(rows.eval),
        shows=words["shows"],
        row=json.dumps(rows.train[0]),
        expectation=f"The tiny model reads letters, one token each, and takes a minute on a CPU. {words['tiny']}"
        if answers.tiny
        else _REAL,
        own=words["own"],
    )
