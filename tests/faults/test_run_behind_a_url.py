"""A run whose output is a URL, killed, goes on on another machine, and is the run that was never killed (CPU)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml
from tests.faults import kill_driver
from tests.processes import Ended, run_alone
from tests.store.urls import contents, rows
from tests.tiny import tiny_model, write_prompts

from posttrain.store import carrier

STEPS = 6
REWARD = """
def vowels(prompt, completion, **row):
    return sum(letter in "aeiou" for letter in completion) / 8
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("url")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=24)
    (folder / "rewards.py").write_text(REWARD)
    return folder


def write_config(folder: Path, output: str) -> Path:
    config = {
        "model": str(folder / "model"),
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": STEPS, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 1},
        "checkpoint": {"every": 2, "keep": 2},
        "guards": {"max_truncated": 1.0},
        "output": output,
        "report": False,
    }
    path = folder / f"{output.rpartition('/')[2]}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def drive_on(machine: str, every: str, verb: str, target: str, *when: str) -> None:
    """For a process of its own: a machine is a folder for runs."""
    os.environ["POSTTRAIN_RUNS"] = machine
    carrier.EVERY = float(every)
    kill_driver.drive(verb, target, *when)


def drive(folder: Path, machine: str, verb: str, target: str, *when: str) -> Ended:
    return run_alone(drive_on, str(folder / machine), "0.05", verb, target, *when)


def test_killed_in_a_save_it_goes_on_elsewhere_bit_for_bit(folder):
    """The save of step 4 is killed; what is behind the URL then is what the other machine gets."""
    url = f"file://{folder}/bucket/run"
    whole = drive(folder, "whole", "train", str(write_config(folder, str(folder / "whole-run"))))
    assert whole.exit_code == 0, whole.errors
    killed = drive(folder, "first", "train", str(write_config(folder, url)), "save", "3", "0.3")
    assert killed.exit_code == -signal.SIGKILL, killed.errors
    assert not (folder / "bucket" / "run" / "checkpoints" / f"step-{STEPS:06d}").exists()
    resumed = drive(folder, "second", "resume", url)
    assert resumed.exit_code == 0, resumed.errors
    last = f"checkpoints/step-{STEPS:06d}"
    there, expected = contents(folder / "bucket" / "run" / last), contents(folder / "whole-run" / last)
    assert there == expected
    assert rows(folder / "bucket" / "run") == rows(folder / "whole-run")
    [local] = (folder / "second").iterdir()
    assert "resumed after step 2" in (local / "events.jsonl").read_text()
    assert contents(folder / "bucket" / "run") == contents(local)
