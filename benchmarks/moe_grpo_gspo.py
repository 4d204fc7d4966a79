"""GRPO against GSPO on a mixture of experts: the spread of ratios, the clipped share, and the held-out score.

    python benchmarks/moe_grpo_gspo.py                 three seeds, about three minutes on two cores
    python benchmarks/moe_grpo_gspo.py --seeds 0       one of them

Both start from the same model (tiny-moe:sort: 16 experts, 4 for each token), see the same prompts and have the same
budget. Each batch is used for several updates, so that the ratios move away from 1. In half of the runs the sampler
decodes with a bfloat16 copy that gets the weights after every second step, so that it rounds and routes differently.
All other settings than those in SETTINGS and SAMPLERS are the algorithm's defaults. Each run has its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

RESULT = Path(__file__).parent / "results" / "moe_grpo_gspo.json"
ALGORITHMS, SEEDS = ("grpo", "gspo"), (0, 1, 2)
SAMPLERS: dict[str, dict[str, Any]] = {
    "the policy itself": {},
    "bfloat16 copy": {"model.precision": "bfloat16", "train.publish_every": 2},
}
STEPS, EVERY = 80, 20
SETTINGS: dict[str, Any] = {
    "model": {"path": "tiny-moe:sort", "device": "cpu"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 8, "max_completion_length": 8, "max_batch_rows": 512},
    "train": {
        "steps": STEPS,
        "prompts_per_step": 32,
        "learning_rate": 1e-4,
        "minibatches": 4,
        "tokens_per_microbatch": 8192,
    },
    "evaluation": {"prompts": 256, "samples": 0, "every": EVERY},
    "checkpoint": {"every": 0},
    "guards": {"no_signal_steps": STEPS},
    "report": False,
}
MEANS = {
    "token_ratio_std": "policy/ratio_std",
    "ratio_max": "policy/ratio_max",
    "clip_fraction": "clip_ratio/region_mean",
    "routing_difference": "mismatch/routing_difference",
    "sampler_difference": "sampling/sampling_logp_difference/mean",
    "staleness": "staleness/mean",
}
"""Column -> metric; the column shows the mean of the metric over the steps."""


def one_run(algorithm: str, sampler: str, seed: int) -> dict[str, Any]:
    """Train one run in this process, and return its figures."""
    import posttrain

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        overrides = {"algorithm": algorithm, "seed": seed, "output": folder} | SAMPLERS[sampler]
        run = posttrain.train(SETTINGS, **overrides)
        seconds = time.perf_counter() - started
        metrics, curve = run.metrics, list(heldout(run.folder))
        used = "policy/sequence_ratio_std" if "policy/sequence_ratio_std" in metrics[0] else "policy/ratio_std"
        return {
            "algorithm": algorithm,
            "sampler": sampler,
            "seed": seed,
            "seconds": round(seconds, 1),
            "ratio_std": mean_of(metrics, used),
            **{column: mean_of(metrics, name) for column, name in MEANS.items()},
            "curve": curve,
        }


def heldout(folder: Path) -> Iterator[tuple[int, float]]:
    """Yield (step, share of right greedy answers) for each evaluation."""
    events = (json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())
    for event in events:
        if event["kind"] == "evaluation":
            yield event["step"], event["evaluation"]["greedy"]["accuracy"]["mean"]


def mean_of(metrics: Sequence[dict[str, Any]], name: str) -> float:
    return fmean(row[name] for row in metrics if row.get(name) is not None)


def in_processes(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Do all runs, two at a time, with one thread each."""

    def start(arguments: tuple[str, str, int]) -> dict[str, Any]:
        command = [sys.executable, __file__, "--one", *map(str, arguments)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{finished.stderr[-2000:]}")
        return json.loads(finished.stdout.splitlines()[-1])

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(start, product(ALGORITHMS, SAMPLERS, seeds)))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """A table with a line for each algorithm and sampler, means over the seeds, and below it the curve of each seed."""
    columns = ["ratio_std", *MEANS, "seconds"]
    lines = ["| algorithm | sampler | " + " | ".join(columns) + " | held-out, before and after |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    for algorithm, sampler in product(ALGORITHMS, SAMPLERS):
        chosen = [run for run in runs if (run["algorithm"], run["sampler"]) == (algorithm, sampler)]
        if chosen:
            numbers = [f"{fmean(run[column] for run in chosen):.3g}" for column in columns]
            ends = [fmean(run["curve"][end][1] for run in chosen) for end in (0, -1)]
            score = f"{ends[0]:.2f} → {ends[1]:.2f}"
            lines.append(f"| {algorithm} | {sampler} | " + " | ".join(numbers) + f" | {score} |")
    for run in runs:
        curve = " ".join(f"{score:.2f}" for _, score in run["curve"])
        lines.append(f"\n{run['algorithm']}, {run['sampler']}, seed {run['seed']}: {curve}")
    return "\n".join(lines)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--one", nargs=3, metavar=("ALGORITHM", "SAMPLER", "SEED"), help="one run, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        algorithm, sampler, seed = arguments.one
        print(json.dumps(one_run(algorithm, sampler, int(seed))))
        return
    from posttrain.config import ModelConfig
    from posttrain.models.named import resolve_model_path

    for seed in arguments.seeds:
        resolve_model_path(ModelConfig(path=SETTINGS["model"]["path"]), seed)  # built once, before two runs need it
    runs = in_processes(arguments.seeds)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread per run",
        "versions": {"torch": torch.__version__.split("+")[0]},
        "settings": SETTINGS,
        "runs": runs,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
