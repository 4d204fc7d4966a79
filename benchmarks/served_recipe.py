"""Train a recipe twice: with a vLLM server that the run starts, and with the local sampler.

    posttrain engine install vllm
    python -m benchmarks.served_recipe            # SVAMP with minimind2-small, 50 steps: a quarter of an hour

Both runs have the same seed, precision and steps. Their held-out scores are compared prompt by prompt. The served run
must have proven every publication, by hashes of all tensors and by the probe.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.machine import origin

import posttrain as pt
from posttrain.functional.intervals import paired_interval

RECIPE = Path(__file__).parents[1] / "recipes" / "svamp_minimind2.yaml"
RESULT = Path(__file__).parent / "results" / "served_recipe.json"
STEPS = 50
SETTINGS = {"train.steps": STEPS, "model.precision": "float32", "report": False}
WORST = ("mismatch/fresh_max", "mismatch/fresh_p99", "publish/probe_max_difference")
"""Metrics for which the largest value over all steps is reported."""


def trained(folder: Path, rollout: dict[str, Any]) -> dict[str, Any]:
    """Train once; return the scores of each held-out prompt before and after, and the steps' metrics of the engine."""
    began = time.perf_counter()
    settings = {f"rollout.{name}": value for name, value in rollout.items()}
    run = pt.train(str(RECIPE), output=str(folder), **SETTINGS, **settings)
    found: dict[str, Any] = {"seconds": time.perf_counter() - began}
    for when in ("baseline", "trained"):
        records = [json.loads(line) for line in (folder / "evaluations" / f"{when}.jsonl").read_text().splitlines()]
        found[when] = {
            "sampled": [sum(one["score"] for one in record["samples"]) / len(record["samples"]) for record in records],
            "greedy": [record["greedy"]["score"] for record in records],
            "greedy_ids": [record["greedy"]["ids"] for record in records],
        }
    compared = [step["publish/tensors_compared"] for step in run.metrics if "publish/tensors_compared" in step]
    found["publications"], found["tensors_compared"] = len(compared), sorted(set(compared))
    for name in WORST:
        found[name] = max((step[name] for step in run.metrics if name in step), default=None)
    return found


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        sides = {
            name: trained(Path(place) / name, rollout)
            for name, rollout in (("local", {}), ("served", {"engine": "vllm", "deadline": 120}))
        }
    local, served = sides["local"], sides["served"]
    same = sum(map(list.__eq__, local["baseline"]["greedy_ids"], served["baseline"]["greedy_ids"]))
    line: dict[str, Any] = {
        "recipe": RECIPE.name,
        "steps": STEPS,
        "prompts": len(local["trained"]["sampled"]),
        "greedy_answers_equal_before_training": same,
        "seconds": {name: side["seconds"] for name, side in sides.items()},
        **{name: served[name] for name in ("publications", "tensors_compared", *WORST)},
    }
    for how in ("greedy", "sampled"):
        scores = {when: {name: side[when][how] for name, side in sides.items()} for when in ("baseline", "trained")}
        change = paired_interval(scores["trained"]["local"], scores["trained"]["served"], bounds=(0.0, 1.0))
        line[how] = {when: {name: mean(one) for name, one in sides.items()} for when, sides in scores.items()}
        line[how]["difference"] = [change.mean, change.low, change.high]
    RESULT.write_text(json.dumps(line | {"origin": origin()}, indent=1) + "\n")
    print(json.dumps(line, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
