"""Runs in child processes: every kind of end is reported, and no child outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.lab.experiments.children import ChildResult, start_child
from posttrain.report.store import read_run

RUN = {
    "model": "tiny:sort",
    "algorithm": "grpo",
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 4, "max_completion_length": 8},
    "train": {"steps": 3, "prompts_per_step": 4},
    "evaluation": {"writing": 0, "prompts": 16, "samples": 0},
    "checkpoint": {"every": 1},
    "report": False,
}


def until(true, seconds: float = 1800.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def test_a_run_that_cannot_be_meant_says_why(tmp_path: Path):
    result = start_child({**RUN, "algorithm": "grpoo"}, tmp_path / "run").wait()
    assert (result.exit_code, result.ok) == (2, False)
    assert result.reason.startswith("ConfigError: algorithm.name = grpoo")
    assert not (tmp_path / "run").exists()
    assert "grpoo" in (tmp_path / "run.log").read_text()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, ""),
        (-9, "its process was ended by SIGKILL (the kernel does this when memory runs out)"),
        (-11, "its process was ended by SIGSEGV"),
        (1, "its process ended with exit code 1; see the log"),
    ],
)
def test_a_child_that_said_nothing_is_known_by_its_exit_code(code: int, reason: str):
    assert ChildResult(folder=Path("run"), exit_code=code, seconds=1.0).reason == reason


@pytest.mark.slow
def test_a_killed_child_goes_on_and_ends(tmp_path: Path):
    endless = {**RUN, "train": {"steps": 100_000, "prompts_per_step": 4}}
    child = start_child(endless, tmp_path / "run")
    until(lambda: child.running and (tmp_path / "run" / "checkpoints" / "step-000002").exists())
    child.process.kill()
    assert child.wait().exit_code == -signal.SIGKILL
    done = read_run(tmp_path / "run").checkpoint_steps[-1]
    child = start_child(endless, tmp_path / "run")
    until(lambda: any(step > done for step in read_run(tmp_path / "run").checkpoint_steps))
    child.stop()
    assert child.wait().reason.startswith("Interrupted: stopped after step")
    assert [event["kind"] for event in read_run(tmp_path / "run").events].count("resume") == 1


@pytest.mark.slow
def test_a_child_dies_with_whoever_started_it(tmp_path: Path):
    script = (
        "import sys, json; from pathlib import Path; from posttrain.lab.experiments.children import start_child;"
        "start_child(json.loads(sys.argv[1]), Path(sys.argv[2])).wait()"
    )
    settings = '{"model": "tiny:sort", "algorithm": "grpo", "data": {"train": "task:sort"}, "rewards": '
    settings += '[{"name": "exact_match"}], "train": {"steps": 100000}, "evaluation": {"writing": 0, "prompts": 16}}'
    parent = subprocess.Popen([sys.executable, "-c", script, settings, str(tmp_path / "run")], env=os.environ.copy())
    until(lambda: (tmp_path / "run" / "config.yaml").exists())
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
