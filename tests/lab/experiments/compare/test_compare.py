"""A comparison with real runs in real processes: killed, continued, and with an arm that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.report.store import read_run

pytestmark = pytest.mark.slow

ARMS: dict[str, Any] = {
    "base": {
        "model": "tiny:sort",
        "algorithm": "grpo",
        "data": {"train": "task:sort"},
        "rewards": [{"name": "exact_match"}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": 1, "prompts_per_step": 4, "learning_rate": 1e-4},
        "evaluation": {"writing": 0, "prompts": 32, "samples": 0, "every": 2},
        "checkpoint": {"every": 1},
        "guards": {"no_signal_steps": 99},
        "report": False,
    },
    "arms": {
        "grpo": {},
        "rloo": {"algorithm": "rloo"},
        "doomed": {"sampling.max_completion_length": 2, "guards.max_truncated": 0.0, "guards.truncated_steps": 2},
    },
    "seeds": 2,
    "budget": {"tokens": 12_000},
}


def start(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "arms.yaml").write_text(json.dumps(ARMS))
    command = [sys.executable, "-m", "posttrain", "compare", str(folder / "arms.yaml"), "--out", str(folder / "out")]
    return subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ.copy())


def until(true, seconds: float = 1800.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def test_killed_and_started_again_it_keeps_what_was_done_and_counts_what_failed(tmp_path: Path):
    out = tmp_path / "out"
    process = start(tmp_path)
    second = out / "runs" / "rloo-seed0"
    until(lambda: max(read_run(second).checkpoint_steps, default=0) >= 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = out / "runs" / "grpo-seed0"
    assert read_run(first).status == "finished"
    kept = (first / "events.jsonl").read_bytes()
    time.sleep(1.0)  # the child notices that its parent is gone

    process = start(tmp_path)
    said, told = process.communicate(timeout=1800)
    assert process.returncode == 1, told.decode()  # not every run finished
    result = json.loads(said)
    assert (first / "events.jsonl").read_bytes() == kept
    assert "resume" in [event["kind"] for event in read_run(second).events]
    first_line, *lines = told.decode().splitlines()
    assert first_line == "5 of 6 runs are left: 3 arms with 2 seeds each"
    assert [line.split(":")[0] for line in lines] == [f"{n} of 6" for n in range(2, 7)]

    budget = ARMS["budget"]["tokens"]
    for run in (run for run in result["runs"] if run["status"] == "finished"):
        rows = read_run(out / "runs" / f"{run['arm']}-seed{run['seed']}").metrics
        assert rows[-1]["num_tokens"] >= budget > rows[-2]["num_tokens"]
    assert {run["arm"] for run in result["runs"] if run["status"] == "finished"} == {"grpo", "rloo"}
    assert result["arms"]["doomed"]["finished"] == 0
    assert any("2 of 2 runs of doomed did not finish (seeds 0 and 1): GuardStop" in text for text in result["verdict"])
    assert result["same_start"] is False  # an arm that may write only two tokens answers differently
    assert result["conditions"]["resumed"] == ["rloo"]

    again = posttrain.compare(out)  # a run that a guard stopped would be stopped again
    assert (out / "attempts.jsonl").read_text().count("\n") == 6  # one before the kill, five after it
    assert again.to_json()["verdict"] == result["verdict"]


def test_paired_runs_begin_alike(tmp_path: Path):
    arms = {**ARMS, "arms": {"grpo": {}, "rloo": {"algorithm": "rloo"}}, "seeds": [4], "budget": {"steps": 2}}
    found = posttrain.compare(arms, out=tmp_path / "out", workers=2)
    assert (found.analysis.same_start, found.analysis.same_prompts) == (True, True)
    assert [run["steps"] for run in found.to_json()["runs"]] == [2, 2]
