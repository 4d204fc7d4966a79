"""A sweep as a real process: killed midway and started again, it loses no trial. Its output can be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.tiny import tiny_model, write_prompts

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
pytestmark = pytest.mark.slow

REWARD = """
def vowels(prompt, completion, **row):
    return sum(letter in "aeiou" for letter in completion) / 8
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", count=24)
    (tmp_path / "rewards.py").write_text(REWARD)
    config = {
        "model": "model",
        "algorithm": "grpo",
        "data": {"train": "prompts.jsonl"},
        "rewards": [{"function": "rewards.py:vowels"}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": 6, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 0, "every": 2},
        "guards": {"max_truncated": 1.0},
        "report": False,
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def command(*more: str) -> list[str]:
    knobs = ("train.learning_rate=log(1e-4,1e-2)", "sampling.group_size=int(1,4)")
    return [sys.executable, "-m", "posttrain", "sweep", "base.yaml", *knobs, "--out", "out", *more]


def start(place: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*more), cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_killed_at_any_moment_and_started_again_no_trial_is_lost(place):
    options = ("--trials", "5", "--workers", "2", "--seeds", "2", "--json")
    for kills in range(2):
        process = start(place, *options)
        wait_for_steps(place / "out" / "trials", process, at_least=4 * (kills + 1))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    out, err = start(place, *options).communicate(timeout=900)
    found = json.loads(out)
    assert [trial["number"] for trial in found["trials"]] == list(range(5)), err
    assert found["trials"][0]["is_default"]
    best_run = place / "out" / "trials" / f"trial-{found['best']['number']:03d}"
    assert (
        found["untrained"]
        == json.loads((best_run / "evaluation.json").read_text())["baseline"]["greedy"]["score"]["mean"]
    )
    assert not any(trial["outcome"] == "running" for trial in found["trials"])
    alone = [trial for trial in found["trials"] if trial["values"]["sampling.group_size"] == 1]
    assert all(trial["outcome"] == "failed" and "at least 2" in trial["reason"] for trial in alone)
    assert all(trial["course"][-1][0] == 6 for trial in found["trials"] if trial["outcome"] == "finished")
    assert {path.name for path in (place / "out").iterdir()} >= {"study.db", "results.json", "report.html", "best.yaml"}
    assert json.loads((place / "out" / "results.json").read_text()) == found
    best = subprocess.run(
        [sys.executable, "-m", "posttrain", "train", "out/best.yaml", "--dry-run", "--json"],
        cwd=place, capture_output=True, text=True, check=True,
    )  # fmt: skip
    settings = json.loads(best.stdout)["config"]
    assert settings["train"]["learning_rate"] == found["best"]["values"]["train.learning_rate"]
    again, _ = start(place, *options).communicate(timeout=300)
    assert json.loads(again)["trials"] == found["trials"]


def test_ctrl_c_saves_the_runs_and_says_so(place):
    process = start(place, "--trials", "2", "--seeds", "0", "train.steps=5000")
    wait_for_steps(place / "out" / "trials", process, at_least=2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Interrupted" in err
    assert "`posttrain sweep out` continues it" in err
    assert list((place / "out" / "trials" / "trial-000" / "checkpoints").glob("step-*/manifest.json"))


def wait_for_steps(trials: Path, process: subprocess.Popen[str], *, at_least: int) -> None:
    deadline = time.monotonic() + 600
    while sum(len(path.read_text().splitlines()) for path in trials.glob("*/metrics.jsonl")) < at_least:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
