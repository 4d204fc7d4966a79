"""One engine process samples and one trainer trains, on two cores: the measured speedup, and its upper bound."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.train.api import train

STEPS, FIRST = 16, 4
"""Number of steps of a run, and number of first steps that are not counted."""
STORIES = os.environ.get("BENCHMARK_STORIES", "")
"""Folder of the stories15M model. Without it, this line of the table is left out."""
BASE: dict[str, Any] = {
    "algorithm": {"name": "grpo"},
    "evaluation": {"prompts": 8, "samples": 0, "writing": 0},
    "checkpoint": {"every": 0},
    "guards": {"no_signal_steps": 200, "max_truncated": 1.0},
    "alarms": {"enabled": False},
    "report": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "tiny:sort": {
        "model": {"path": "tiny:sort", "device": "cpu"},
        "data": {"train": "task:sort"},
        "rewards": [{"name": "exact_match"}],
        "sampling": {"group_size": 8, "max_completion_length": 8, "max_batch_rows": 512},
        "train": {"steps": STEPS, "prompts_per_step": 64, "learning_rate": 1e-4, "minibatches": 2},
    },
    "stories15M": {
        "model": {"path": STORIES, "device": "cpu"},
        "data": {"train": "task:sort"},
        "rewards": [{"function": "benchmarks.asynchrony.cores.brevity"}],
        "sampling": {"group_size": 4, "max_completion_length": 64, "max_batch_rows": 64},
        "train": {"steps": STEPS, "prompts_per_step": 4, "learning_rate": 1e-6},
    },
}


def brevity(completion: str) -> float:
    """A reward that costs nothing and differs between answers."""
    return 1.0 - len(completion) / 1000


def measure(name: str, threads: int, run_ahead: int) -> dict[str, Any]:
    """Train one run, and return the median times of the phases of a step."""
    given: dict[str, Any] = {}
    if run_ahead:
        given = {"rollout.engines": 1, "train.run_ahead": run_ahead, "train.max_staleness": 8}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = train(copy.deepcopy(BASE | MODELS[name] | {"output": f"{folder}/run"}), **given)
        steps = run.metrics[FIRST:]
        parameters = sum(one.numel() for one in run.trainer.loaded.model.parameters())
    middle = {
        key: statistics.median(step[key] for step in steps)
        for key in ("time/step", "time/sample", "time/wait_for_groups")
        if key in steps[0]
    }
    return {"threads": threads, "load": [load, os.getloadavg()[0]], "parameters": parameters, **middle}


def run_all(folder: Path) -> dict[str, Any]:
    found, loads = [], []
    for name in MODELS if STORIES else [name for name in MODELS if name != "stories15M"]:
        one = {}
        for key, threads, ahead in (("two", 2, 0), ("one", 1, 0), ("asynchronous", 2, 1)):
            command = [sys.executable, "-m", "benchmarks.asynchrony.cores", name, str(threads), str(ahead)]
            environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
            told = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
            one[key] = json.loads(told.splitlines()[-1])
            loads += one[key]["load"]
        found.append(_line(name, one))
    return {"models": found, "load": [min(loads), max(loads)], "cores": os.cpu_count(), "base": BASE}


def _line(name: str, one: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One line of the table. `bound` is (S2 + T2) / max(S1, T1); T is the time of a step without sampling."""
    two, alone = one["two"], one["one"]
    longest = max(alone["time/sample"], alone["time/step"] - alone["time/sample"])
    return {
        "name": name,
        "parameters": two["parameters"],
        "sampling": two["time/sample"],
        "training": two["time/step"] - two["time/sample"],
        "synchronous": two["time/step"],
        "asynchronous": one["asynchronous"]["time/step"],
        "bound": two["time/step"] / longest,
        "runs": one,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
