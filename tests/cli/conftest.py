"""A folder with a good config, data and a reward, a model and a run that are made once, and a shell in that folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.faults.bad_inputs import make_good

from posttrain.cli import run


@pytest.fixture(scope="session")
def good(tmp_path_factory) -> Path:
    return make_good(tmp_path_factory.mktemp("good").resolve())


@pytest.fixture
def place(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: run.yaml, train.jsonl, eval.jsonl, rewards.py, model/ and the run finished/."""
    for path in good.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
        else:
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Shell:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        self.capfd.readouterr()
        exit_code = run(arguments)
        return exit_code, *self.capfd.readouterr()

    def json(self, *arguments: str) -> tuple[int, Any]:
        """Return the exit code, and the one object on stdout."""
        exit_code, out, _ = self(*arguments, "--json")
        return exit_code, json.loads(out)


@pytest.fixture
def posttrain(place: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capfd)
