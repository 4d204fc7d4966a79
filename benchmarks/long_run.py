"""Thousands of steps of a tiny asynchronous run: memory, file descriptors, processes and threads must not grow.

    python -m benchmarks.long_run --steps 5000

The run has its own process, with one engine that is two steps ahead. The run and its engine are measured every few
seconds. The check compares the median of the second tenth of the measurements with the median of the last tenth; the
first tenth is warm-up. Memory may grow by a twentieth, and everything else may not grow at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from benchmarks.speed.machine import origin

RESULT = Path(__file__).parent / "results" / "long_run.json"
EVERY = 5.0
"""Time between two measurements, in seconds."""
MEMORY_MAY_GROW = 0.05
SETTINGS = {
    "model": {"path": "tiny:sort", "device": "cpu"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "algorithm": {"name": "grpo"},
    "sampling": {"group_size": 4, "max_completion_length": 8},
    "rollout": {"engines": 1},
    "train": {"prompts_per_step": 4, "learning_rate": 1e-5, "run_ahead": 2, "max_staleness": 8},
    "evaluation": {"prompts": 8, "samples": 1, "writing": 0},
    "checkpoint": {"every": 250, "keep": 2},
    "guards": {"no_signal_steps": 100_000, "max_truncated": 1.0},
    "alarms": {"enabled": False},
    "report": False,
}


def look(trainer: psutil.Process) -> dict[str, dict[str, float]]:
    """The current resource use of the trainer, of its engine, and of all processes together."""
    found: dict[str, dict[str, float]] = {}
    with suppress(psutil.Error):
        found["trainer"] = taken(trainer)
        children = trainer.children(recursive=True)
        found["all"] = {"processes": 1 + len(children)}
        for child in children:
            if "posttrain.engines.worker" in child.cmdline():
                found["engine"] = taken(child)
    return found


def taken(process: psutil.Process) -> dict[str, float]:
    with process.oneshot():
        return {
            "memory_mb": process.memory_full_info().uss / 1e6,
            "files": process.num_fds(),
            "threads": process.num_threads(),
        }


def run(folder: Path, steps: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the training, and return the measurements and the end of the run."""
    output, config = folder / "run", folder / "config.yaml"
    settings = {**SETTINGS, "train": {**SETTINGS["train"], "steps": steps}, "output": str(output)}  # type: ignore[dict-item]
    config.write_text(json.dumps(settings))  # JSON is YAML
    looks, began = list[dict[str, Any]](), time.monotonic()
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "posttrain", "train", str(config)], stdout=log, stderr=log)
        trainer = psutil.Process(process.pid)
        while process.poll() is None:
            if (output / "metrics.jsonl").exists() and (found := look(trainer)) and "engine" in found:
                looks.append({"seconds": round(time.monotonic() - began, 1), **found})
            time.sleep(EVERY)
    text = (output / "metrics.jsonl").read_text().splitlines()
    if process.returncode:
        raise SystemExit((folder / "log.txt").read_text()[-2000:])
    return looks, {"exit_code": process.returncode, "steps": len(text), "seconds": round(time.monotonic() - began)}


def compare(looks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The early and the late median of each number."""
    tenth = max(1, len(looks) // 10)
    early, late = looks[tenth : 2 * tenth], looks[-tenth:]
    found: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for who, numbers in looks[0].items():
        for name in numbers if isinstance(numbers, Mapping) else ():
            found[who][name] = [round(statistics.median(x[who][name] for x in part), 1) for part in (early, late)]
    return dict(found)


def grown(compared: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """The numbers that grew, in words.

    >>> grown({"engine": {"memory_mb": [100.0, 104.0], "files": [8, 9]}})
    ['files of engine: from 8 to 9']
    """
    return [
        f"{name} of {who}: from {early:g} to {late:g}"
        for who, numbers in compared.items()
        for name, (early, late) in numbers.items()
        if late > early * (1 + (MEMORY_MAY_GROW if name == "memory_mb" else 0))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        looks, ended = run(Path(place), asked.steps)
    compared = compare(looks)
    wrong = grown(compared)
    record = {**ended, "looks": len(looks), "early_and_late": compared, "grown": wrong, "origin": origin()}
    asked.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{ended['steps']} steps in {ended['seconds']} s, {len(looks)} looks: early, late")
    for who, numbers in compared.items():
        print(f"  {who}: " + ", ".join(f"{name} {early:g}, {late:g}" for name, (early, late) in numbers.items()))
    print("; ".join(wrong) or "everything is flat")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
