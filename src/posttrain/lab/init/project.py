"""A project folder: config.yaml, reward.py where there is a reward, data to begin with, and a README.md."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.files import write_atomically
from posttrain.lab.init.questions import Answers
from posttrain.lab.init.readme import commands_of, readme_text
from posttrain.lab.init.samples import Row, sample
from posttrain.lab.init.settings import SAMPLED, Recommendation, config_text, lines_of, recommend, settings_of


@dataclass(frozen=True, kw_only=True)
class Project:
    """What was written."""

    folder: Path
    files: tuple[str, ...]
    algorithm: str
    reason: str
    commands: tuple[str, ...]
    """What to type next, in its order."""

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "files": list(self.files),
            "algorithm": self.algorithm,
            "reason": self.reason,
            "commands": list(self.commands),
        }

    def render(self) -> str:
        written = f"{self.folder}: {', '.join(self.files)}"
        return "\n".join(
            [written, f"algorithm {self.algorithm}: {self.reason}", "Now:", *(f"  {c}" for c in self.commands)]
        )


def make_project(answers: Answers) -> Project:
    """Write the project. Raises ConfigError where one of its files is there already; nothing is written then."""
    found = recommend(answers)
    texts = project_files(answers, found)
    present = [name for name in texts if (answers.folder / name).exists()]
    if present or answers.folder.is_file():
        raise ConfigError(
            given=f"{answers.folder} holds {', '.join(present)}" if present else f"{answers.folder} is a file",
            allowed="a folder without these files: nothing is overwritten",
            fix="Name another folder: posttrain init another-name.",
        )
    for name, text in texts.items():
        write_atomically(answers.folder / name, text)
    return Project(
        folder=answers.folder,
        files=tuple(texts),
        algorithm=found.algorithm,
        reason=found.reason,
        commands=(f"cd {answers.folder}", *commands_of(answers)),
    )


def project_files(answers: Answers, found: Recommendation) -> dict[str, str]:
    """Name -> content. The settings are those of a run, or this raises."""
    lines, rows = lines_of(answers, found), sample(answers.data, tiny=answers.tiny)
    check(load_config(settings_of(lines)).config)
    reward = {"reward.py": _reward(answers)} if answers.data in SAMPLED else {}
    return {
        "config.yaml": config_text(lines, "posttrain train config.yaml        README.md says what to expect"),
        **reward,
        "train.jsonl": _json_lines(rows.train),
        "eval.jsonl": _json_lines(rows.eval),
        "README.md": readme_text(answers, found, rows),
    }


def _reward(answers: Answers) -> str:
    name = f"{answers.data}_tiny.py" if answers.tiny else f"{answers.data}.py"
    return (importlib.resources.files("posttrain.lab.init") / "templates" / name).read_text(encoding="utf-8")


def _json_lines(rows: Sequence[Row] | Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
