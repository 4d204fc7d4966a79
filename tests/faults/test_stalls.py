"""A run that makes no progress ends, says where it hung, and can be resumed; a slow run continues."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest
from tests.processes import run_alone
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.train.watchdog import Watchdog

REWARDS = """
import time
from pathlib import Path

HERE = Path(__file__).parent


def hangs(prompt, completion, **row):
    if (HERE / "run" / "rollouts" / "step-000001.parquet").exists() and not (HERE / "go-on").exists():
        time.sleep(10_000)
    return len(completion) % 3 / 2


def slow(prompt, completion, **row):
    time.sleep(2)
    return len(completion) % 3 / 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", count=12)
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def train(folder: str, function: str, seconds: str, steps: str) -> None:
    config = {
        "model": f"{folder}/model",
        "algorithm": "grpo",
        "data": {"train": f"{folder}/prompts.jsonl", "eval_fraction": 0.0},
        "rewards": [{"function": f"{folder}/rewards.py:{function}", "timeout": 5000}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": int(steps), "prompts_per_step": 4},
        "checkpoint": {"every": 1},
        "evaluation": {"writing": 0},
        "guards": {"max_truncated": 1.0, "stalled_minutes": float(seconds) / 60},
        "output": f"{folder}/run",
        "report": False,
    }
    posttrain.train(config)


@pytest.mark.slow
def test_a_reward_that_hangs_beyond_its_timeout_ends_the_run_with_the_stacks_of_all_threads(folder):
    started = time.monotonic()
    ended = run_alone(train, str(folder), "hangs", "8", "3")
    assert ended.exit_code == 4, ended.errors
    assert time.monotonic() - started < 300
    assert "no progress for 0.1" in ended.errors
    assert "`posttrain resume" in ended.errors
    stacks = (folder / "run" / "stalled.txt").read_text()
    assert "Thread" in stacks
    assert "in one_step" in stacks, "the place where the loop hung"
    error = json.loads((folder / "run" / "error.json").read_text())
    assert (error["type"], error["exit_code"], error["step"]) == ("GuardStop", 4, 1)
    workers = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]
    assert workers == [], "no process of the run remains"
    (folder / "go-on").touch()
    assert posttrain.resume(folder / "run").step == 3


def test_a_run_that_is_slow_and_goes_on_is_left_alone(folder):
    """The step waits for sixteen rewards, longer than the limit."""
    ended = run_alone(train, str(folder), "slow", "9", "1")
    assert ended.exit_code == 0, ended.errors
    assert not (folder / "run" / "stalled.txt").exists()


def test_time_in_which_the_whole_process_was_stopped_does_not_count(tmp_path, monkeypatch):
    """The clock jumps by an hour, in which no thread could report progress."""
    from posttrain.train import watchdog

    class Store:
        folder = tmp_path

    ended, clock = [], iter(range(0, 10**9, 3600))
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: next(clock))
    with watchdog.Watchdog(Store(), 10 / 60, end=ended.append):  # type: ignore[arg-type]
        time.sleep(1.2)
    assert ended == []
    assert not (tmp_path / "stalled.txt").exists()


class Place:
    """As much of a store as the final messages need."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.errors = folder, []

    def error(self, error: Exception) -> None:
        self.errors.append(str(error))


def stalled(folder: Path, **settings) -> Place:
    place = Place(folder)
    with Watchdog(place, 0.2 / 60, **settings):  # type: ignore[arg-type]
        time.sleep(1.5)
    return place


def test_an_interactive_process_is_told_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    assert stalled(tmp_path).errors == []
    assert "warning: no progress" in capsys.readouterr().err
    assert "Thread" in (tmp_path / "stalled.txt").read_text()


def test_a_link_in_place_of_the_stacks_leads_nowhere(tmp_path):
    """A reward, for example, could make the link during the run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "run" / "stalled.txt").symlink_to(tmp_path / "victim")
    ended: list[int] = []
    assert len(stalled(tmp_path / "run", end=ended.append).errors) == 1
    assert ended == [4]
    assert (tmp_path / "victim").read_text() == "as it was"
