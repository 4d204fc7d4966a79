"""How stale tokens may be, and how a correction helps: bounds x corrections x seeds on the demonstration task.

The engine decodes immediately (`InlineEngine`), so every token is as old as the bound allows, as soon as there were
enough steps. So no token is masked, and two runs with the same settings are identical.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.asynchrony.engines import InlineEngine

from posttrain.functional.intervals import mean_interval, paired_interval
from posttrain.train.api import train
from posttrain.train.fleet import Fleet

BOUNDS, SEEDS = (0, 1, 2, 4, 8, 16), (0, 1, 2, 3, 4)
CORRECTIONS: dict[str, Any] = {"auto": "auto", "none": {"low": 1, "high": 1}, "bypass": "bypass"}
"""`auto` is the decoupled objective with weights below 2. The name `none` is refused for stale data; weights limited
to 1 do the same. `bypass` centres the clip at the sampling policy: the original PPO, AReaL's "naive PPO"."""
BASE: dict[str, Any] = {
    "model": {"path": "tiny:sort", "device": "cpu"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 8, "max_completion_length": 8, "max_batch_rows": 512},
    "train": {
        "steps": 120,
        "prompts_per_step": 16,
        "learning_rate": 3e-4,
        "schedule": "linear",
        "warmup_steps": 10,
        "tokens_per_microbatch": 8192,
    },
    "evaluation": {"prompts": 512, "samples": 0, "writing": 0},
    "checkpoint": {"every": 0},
    "guards": {"no_signal_steps": 200, "max_truncated": 1.0},
    "alarms": {"enabled": False},
    "report": False,
}
SPIKE = 5.0
"""A gradient norm above this multiple of the run's median counts as a spike."""


class Case(NamedTuple):
    bound: int
    correction: str
    seed: int


def cases(seeds: Sequence[int] = SEEDS) -> list[Case]:
    """All cases to measure. With bound 0 there is nothing to correct, so one run per seed serves all corrections."""
    found = [Case(*case) for case in itertools.product(BOUNDS, CORRECTIONS, seeds)]
    wanted = [case for case in found if case.bound or case.correction == "auto"]
    return sorted(wanted, key=lambda case: (case.correction == "bypass", case.seed))


def measure(case: Case) -> dict[str, Any]:
    """Train one run, and return the figures for the table."""
    given: dict[str, Any] = {}
    if case.bound:
        given = {"rollout.engines": 1, "train.run_ahead": case.bound, "train.max_staleness": case.bound}
    Fleet.start = InlineEngine
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        algorithm = {"name": "grpo", "correction": CORRECTIONS[case.correction]}
        run = train({**BASE, "algorithm": algorithm, "output": f"{folder}/run", "seed": case.seed}, **given)
        steps, found = run.metrics, run.evaluation
    norms = [step["grad_norm"] for step in steps if "grad_norm" in step]
    middle = statistics.median(norms)
    return {
        **case._asdict(),
        "baseline": found["baseline"]["greedy"]["accuracy"]["mean"],
        "score": found["trained"]["greedy"]["accuracy"]["mean"],
        "lag_mean": statistics.mean(step["staleness/mean"] for step in steps),
        "lag_max": max(step["staleness/max"] for step in steps),
        "masked": statistics.mean(step.get("staleness/masked", 0.0) for step in steps),
        "mismatch_k3": statistics.median(step["mismatch/k3"] for step in steps),
        "gradient_median": middle,
        "gradient_max": max(norms),
        "spikes": sum(norm > SPIKE * middle for norm in norms),
        "rewards": [round(step["reward"], 4) for step in steps[9::10]],
    }


def run_all(folder: Path, *, at_once: int = 2) -> dict[str, Any]:
    """Measure all cases, in `at_once` parallel processes. Cases that are on file in `folder` are not measured again."""
    kept = folder / "learning.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    there = {Case(run["bound"], run["correction"], run["seed"]) for run in done}
    missing = [case for case in cases() if case not in there]
    parts = [missing[number::at_once] for number in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda part: _in_process(part, kept), parts))
    return summary([json.loads(line) for line in kept.read_text().splitlines()])


def _in_process(part: Sequence[Case], kept: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.asynchrony.learning", str(kept), json.dumps(part)]
    subprocess.run(command, check=True)


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The runs, and one line for each bound and correction with intervals over its seeds."""
    ordered = sorted(runs, key=lambda run: (list(CORRECTIONS).index(run["correction"]), run["bound"], run["seed"]))
    synchronous = {run["seed"]: run["score"] for run in ordered if run["bound"] == 0}
    lines = []
    for correction in CORRECTIONS:
        for bound in BOUNDS:
            seeds = [run for run in ordered if (run["bound"], run["correction"]) == (bound, correction)]
            if not seeds:
                continue
            score = mean_interval([run["score"] for run in seeds])
            paired = [run for run in seeds if run["seed"] in synchronous]
            change = paired_interval([synchronous[run["seed"]] for run in paired], [run["score"] for run in paired])
            lines.append(
                {
                    "bound": bound,
                    "correction": correction,
                    "seeds": len(seeds),
                    "score": [score.mean, score.low, score.high],
                    "change": [change.mean, change.low, change.high],
                    "lag_mean": statistics.mean(run["lag_mean"] for run in seeds),
                    "lag_max": max(run["lag_max"] for run in seeds),
                    "masked": statistics.mean(run["masked"] for run in seeds),
                    "mismatch_k3": statistics.median(run["mismatch_k3"] for run in seeds),
                    "gradient_max": max(run["gradient_max"] for run in seeds),
                    "spikes": sum(run["spikes"] for run in seeds),
                }
            )
    return {"base": BASE, "lines": lines, "runs": ordered}


if __name__ == "__main__":
    for given in json.loads(sys.argv[2]):
        result = measure(Case(*given))
        with Path(sys.argv[1]).open("a") as file:
            file.write(json.dumps(result) + "\n")
