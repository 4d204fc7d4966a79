"""Steps per second with engines that answer like a server: synchronous and asynchronous runs at the same time.

The engine sleeps (`SleepingEngine`): a token takes a fixed time, however many rows there are, and the time differs
between rows with a log-normal distribution. The tokens are real: the tiny model samples each one when it is due, with
the weights that are loaded then. The trainer is real, too. Every run starts from the same model, which has learned a
part of the task, and trains it further. Synchronous and asynchronous runs go on in parallel, because the synchronous
ones need the cores for only a small part of their time.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.asynchrony.engines import Pace, SleepingEngine

from posttrain.engines.port import Task
from posttrain.functional.intervals import mean_interval, paired_interval
from posttrain.train.api import train
from posttrain.train.fleet import Fleet

PACE = Pace(seconds=0.02, slots=512)
"""An answer of eight tokens takes 0.16 seconds on average and at most 0.96. The slowest answer ends a step."""
SYNCHRONOUS, RECOMMENDED = (0, 0), (2, 8)
SETTINGS = (SYNCHRONOUS, (1, 8), RECOMMENDED, (4, 8))
"""(run_ahead, max_staleness)."""
SEEDS = (0, 1, 2, 3, 4)
FIRST = 10
"""Number of first steps that are not counted, because no answers are ready for them."""
GOAL = 2.77
BASE: dict[str, Any] = {
    "model": {"device": "cpu"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "algorithm": {"name": "grpo"},
    "sampling": {"group_size": 8, "max_completion_length": 8, "max_batch_rows": 512},
    "rollout": {"engines": 1},
    "train": {
        "steps": 260,
        "prompts_per_step": 64,
        "learning_rate": 1.5e-4,
        "schedule": "linear",
        "warmup_steps": 10,
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
    "train.learning_rate": 5e-4,
    "train.minibatches": 2,
    "seed": 100,
}
"""The settings that trained the model from which all runs start."""


FAST: dict[str, Any] = {"model.path": "tiny:sort", "train.learning_rate": 5e-4, "train.minibatches": 2}
"""The settings for a policy that moves fast: the demonstration's start model, and two large updates for each batch."""


class Case(NamedTuple):
    run_ahead: int
    max_staleness: int
    seed: int


def prepare(folder: Path) -> Path:
    """Train the model from which all runs start, unless it exists, and return its folder."""
    if not (folder / "before" / "checkpoints").exists():
        _train(folder / "before", **BEFORE)
    return max((folder / "before" / "checkpoints").glob("step-*")) / "model"


def measure(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """Train one run, and return its figures without the first steps. `given` are additional settings."""
    Fleet.start = SleepingEngine.at(PACE)
    ahead = {"train.run_ahead": case.run_ahead, "train.max_staleness": case.max_staleness, "seed": case.seed}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run = _train(Path(folder) / "run", **given, **ahead)
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
        "mismatch_k3": statistics.mean(step["mismatch/k3"] for step in steps),
        "answer_tokens": statistics.mean(step["completions/mean_length"] for step in steps),
        "baseline": found["baseline"]["greedy"]["accuracy"]["mean"],
        "score": found["trained"]["greedy"]["accuracy"]["mean"],
        "load": [load, os.getloadavg()[0]],
    }


def _train(folder: Path, **given: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return train({**copy.deepcopy(BASE), "output": str(folder)}, **given)


def run_all(folder: Path) -> dict[str, Any]:
    """Do the runs of every setting. Runs that are on file in `folder` are not repeated."""
    others = [Case(*RECOMMENDED, seed) for seed in SEEDS]
    others += [Case(*setting, 0) for setting in SETTINGS if setting not in (SYNCHRONOUS, RECOMMENDED)]
    return summary(_run(folder / "speed.jsonl", {"model.path": str(prepare(folder))}, others))


def run_fast(folder: Path) -> dict[str, Any]:
    """Do synchronous runs and runs with the recommended setting for a policy that moves fast."""
    return fast_summary(_run(folder / "fast.jsonl", FAST, [Case(*RECOMMENDED, seed) for seed in SEEDS]))


def _run(kept: Path, given: Mapping[str, Any], others: Sequence[Case]) -> list[dict[str, Any]]:
    """Do two synchronous runs and one of the others at a time, each in its own process."""
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    there = {Case(run["run_ahead"], run["max_staleness"], run["seed"]) for run in done}
    synchronous = [Case(*SYNCHRONOUS, seed) for seed in SEEDS]

    def run(cases: Sequence[Case]) -> None:
        for case in cases:
            if case not in there:
                what = (str(kept), json.dumps(given), json.dumps(case))
                command = [sys.executable, "-m", "benchmarks.asynchrony.speed", *what]
                subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, (synchronous[::2], synchronous[1::2], others)))
    return [json.loads(line) for line in kept.read_text().splitlines()]


def fast_summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The speed and the cost of the recommended setting for a policy that moves fast."""
    by_setting = {(run["run_ahead"], run["seed"]): run for run in runs}
    pairs = [(by_setting[0, seed], by_setting[RECOMMENDED[0], seed]) for seed in SEEDS]
    before, after = zip(*pairs, strict=True)
    change = paired_interval([run["score"] for run in before], [run["score"] for run in after])
    rates = [statistics.median(run["steps_per_second"] for run in side) for side in (before, after)]
    return {
        "learning_rate": FAST["train.learning_rate"],
        "minibatches": FAST["train.minibatches"],
        "times": rates[1] / rates[0],
        "scores": [statistics.mean(run["score"] for run in side) for side in (before, after)],
        "difference": {"seeds": len(pairs), "mean": change.mean, "low": change.low, "high": change.high},
        "runs": list(runs),
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One line for each setting, and the difference in score between the recommended setting and synchronous runs."""
    lines = []
    for setting in SETTINGS:
        same = [run for run in runs if (run["run_ahead"], run["max_staleness"]) == setting]
        if same:
            lines.append({"run_ahead": setting[0], "max_staleness": setting[1], "runs": len(same)} | _line(same))
    slow = next(line for line in lines if line["run_ahead"] == 0)
    longest = _longest()
    for line in lines:
        line["times"] = line["steps_per_second"] / slow["steps_per_second"]
        line["times_at_pace"] = (longest * slow["answer_tokens"] + slow["busy_seconds"]) * line["steps_per_second"]
    scores = {(run["run_ahead"], run["seed"]): run["score"] for run in runs}
    both = [seed for seed in SEEDS if (0, seed) in scores and (RECOMMENDED[0], seed) in scores]
    change = paired_interval([scores[0, seed] for seed in both], [scores[RECOMMENDED[0], seed] for seed in both])
    return {
        "base": BASE,
        "before": BEFORE,
        "pace": asdict(PACE),
        "lines": lines,
        "difference": {"seeds": len(both), "mean": change.mean, "low": change.low, "high": change.high},
        "runs": list(runs),
    }


def _longest(steps: int = 100) -> float:
    """Mean time for a token in the slowest row of a synchronous step, in seconds."""
    rows = BASE["train"]["prompts_per_step"] * BASE["sampling"]["group_size"]
    task = Task(row=(0, 0), attempt=1, prompt_ids=(), seed=0, stream=(0, 0), max_new_tokens=1)
    return statistics.mean(
        max(PACE.of(replace(task, stream=(step, row))) for row in range(rows)) for step in range(steps)
    )


def _line(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    middle = ("steps_per_second", "step_seconds", "busy_seconds", "idle")
    middle += ("lag_mean", "masked", "answer_tokens", "mismatch_k3")
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
    result = measure(Case(*json.loads(sys.argv[3])), json.loads(sys.argv[2])) | {"seconds": time.monotonic() - began}
    with Path(sys.argv[1]).open("a") as file:
        file.write(json.dumps(result) + "\n")
