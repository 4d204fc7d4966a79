"""Steps per second with engines that answer like a server: synchronous and asynchronous, side by side in one run.

The engine sleeps (`SleepingEngine`): a token takes its time whatever the number of rows, and rows are as long as the
log-normal says. Its tokens are real: the tiny model draws each when it is due, with the weights that are loaded then.
The trainer is real, too. Every run starts from the same model, which has learned a part of the task.
"""

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
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.asynchrony.engines import Pace, SleepingEngine

from posttrain.functional.intervals import mean_interval, paired_interval
from posttrain.train.api import train
from posttrain.train.fleet import Fleet

PACE = Pace(seconds=0.025)
"""An answer of eight tokens takes 0.2 seconds on average and 1.2 at most. The longest decides when a step ends."""
SYNCHRONOUS, DEFAULT = (0, 0), (2, 8)
SETTINGS = (SYNCHRONOUS, (1, 8), DEFAULT, (4, 8))
"""(run_ahead, max_staleness)."""
SEEDS = (0, 1, 2, 3, 4)
FIRST = 10
"""Steps that are not counted: the first ones find no answers that wait for them."""
GOAL = 2.77
BASE: dict[str, Any] = {
    "model": {"device": "cpu"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "algorithm": {"name": "grpo"},
    "sampling": {"group_size": 8, "max_completion_length": 8, "max_batch_rows": 512},
    "rollout": {"engines": 1},
    "train": {
        "steps": 70,
        "prompts_per_step": 16,
        "learning_rate": 2e-4,
        "schedule": "linear",
        "warmup_steps": 10,
        "minibatches": 2,
        "tokens_per_microbatch": 8192,
    },
    "evaluation": {"prompts": 1024, "samples": 0, "writing": 0},
    "checkpoint": {"every": 0},
    "guards": {"no_signal_steps": 200, "max_truncated": 1.0},
    "alarms": {"enabled": False},
    "report": False,
}
BEFORE: dict[str, Any] = {
    "model.path": "tiny:sort",
    "rollout.engines": 0,
    "train.steps": 140,
    "train.prompts_per_step": 64,
    "train.learning_rate": 5e-4,
    "seed": 100,
}
"""How the model came about from which all runs start."""


class Case(NamedTuple):
    run_ahead: int
    max_staleness: int
    seed: int


def prepare(folder: Path) -> Path:
    """The model from which all runs start."""
    run = _train(BASE, folder / "before", **BEFORE)
    assert run.model_path is not None
    return run.model_path


def measure(case: Case, model: Path) -> dict[str, Any]:
    """One run and the times of its steps, without the first ones."""
    Fleet.start = SleepingEngine.at(PACE)
    ahead = {"train.run_ahead": case.run_ahead, "train.max_staleness": case.max_staleness, "seed": case.seed}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run = _train(BASE, Path(folder) / "run", **{"model.path": str(model)}, **ahead)
        steps, found = run.metrics[FIRST:], run.evaluation
    seconds = [step["time/step"] for step in steps]
    waited = [step["time/wait_for_groups"] for step in steps]
    return {
        **case._asdict(),
        "steps_per_second": len(seconds) / sum(seconds),
        "step_seconds": statistics.median(seconds),
        "idle": sum(waited) / sum(seconds),
        "busy_seconds": statistics.median(a - b for a, b in zip(seconds, waited, strict=True)),
        "lag_mean": statistics.mean(step["staleness/mean"] for step in steps),
        "lag_p95": max(step["staleness/p95"] for step in steps),
        "lag_max": max(step["staleness/max"] for step in steps),
        "masked": statistics.mean(step["staleness/masked"] for step in steps),
        "answer_tokens": statistics.mean(step["completions/mean_length"] for step in steps),
        "baseline": found["baseline"]["greedy"]["accuracy"]["mean"],
        "score": found["trained"]["greedy"]["accuracy"]["mean"],
        "load": [load, os.getloadavg()[0]],
    }


def _train(base: Mapping[str, Any], folder: Path, **given: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return train({**copy.deepcopy(dict(base)), "output": str(folder)}, **given)


def run_all(folder: Path, model: Path | None = None) -> dict[str, Any]:
    """One after the other, each in a process of its own; what is on file in `folder` is not done again."""
    kept = folder / "speed.jsonl"
    model = model or prepare(folder)
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    there = {Case(run["run_ahead"], run["max_staleness"], run["seed"]) for run in done}
    wanted = [Case(*setting, 0) for setting in SETTINGS]
    wanted += [Case(*setting, seed) for seed in SEEDS[1:] for setting in (SYNCHRONOUS, DEFAULT)]
    for case in wanted:
        if case not in there:
            command = [sys.executable, "-m", "benchmarks.asynchrony.speed", str(kept), str(model), json.dumps(case)]
            subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return summary([json.loads(line) for line in kept.read_text().splitlines()])


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The runs, one line for each setting, and the difference of the scores of the defaults."""
    lines = []
    for setting in SETTINGS:
        same = [run for run in runs if (run["run_ahead"], run["max_staleness"]) == setting]
        if same:
            lines.append({"run_ahead": setting[0], "max_staleness": setting[1], "runs": len(same)} | _line(same))
    slow = next(line for line in lines if line["run_ahead"] == 0)
    for line in lines:
        line["times"] = line["steps_per_second"] / slow["steps_per_second"]
    scores = {(run["run_ahead"], run["seed"]): run["score"] for run in runs}
    both = [seed for seed in SEEDS if (0, seed) in scores and (DEFAULT[0], seed) in scores]
    change = paired_interval([scores[0, seed] for seed in both], [scores[DEFAULT[0], seed] for seed in both])
    return {
        "base": BASE,
        "before": BEFORE,
        "pace": asdict(PACE),
        "lines": lines,
        "difference": {"seeds": len(both), "mean": change.mean, "low": change.low, "high": change.high},
        "runs": list(runs),
    }


def _line(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    middle = ("steps_per_second", "step_seconds", "busy_seconds", "idle", "lag_mean", "masked", "answer_tokens")
    score = mean_interval([run["score"] for run in same]) if len(same) > 1 else None
    return {
        **{name: statistics.median(run[name] for run in same) for name in middle},
        "lag_p95": max(run["lag_p95"] for run in same),
        "lag_max": max(run["lag_max"] for run in same),
        "score": statistics.mean(run["score"] for run in same),
        "interval": [score.low, score.high] if score else None,
        "baseline": statistics.mean(run["baseline"] for run in same),
        "load": [min(run["load"][0] for run in same), max(run["load"][1] for run in same)],
    }


if __name__ == "__main__":
    began = time.monotonic()
    result = measure(Case(*json.loads(sys.argv[3])), Path(sys.argv[2])) | {"seconds": time.monotonic() - began}
    with Path(sys.argv[1]).open("a") as file:
        file.write(json.dumps(result) + "\n")
