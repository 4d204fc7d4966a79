"""Time of whole commands, from the shell to their end: `python -m benchmarks.startup [LABEL=PYTHON ...]`.

Each command has its own process, in an empty folder. Several interpreters (`before=/old/.venv/bin/python
now=.venv/bin/python`) take turns, round after round. Wall time and CPU time are medians. CPU time (user and system,
with children) hardly depends on other load.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """\
model: tiny:sort
algorithm: {name: grpo}
data: {train: "task:sort"}
rewards: [{name: exact_match}]
train: {steps: 1, prompts_per_step: 8}
"""
COMMANDS: dict[str, list[str]] = {
    "--help": ["--help"],
    "explain grpo": ["explain", "grpo"],
    "train, misspelt setting": ["train", "run.yaml", "train.learing_rate=1e-6"],
    "plan": ["plan", "--model", "7b", "--algorithm", "grpo", "--gpus", "h100"],
    "train, one step of tiny:sort": ["train", "run.yaml", "output=run"],
}


def measure(python: str, command: list[str]) -> tuple[float, float]:
    """Run one command; return (wall seconds, CPU seconds) of its process and its children."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.yaml").write_text(CONFIG)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([python, "-m", "posttrain", *command], cwd=folder, capture_output=True, check=False)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 2, 3):
        raise SystemExit(f"{python} {command}: exit code {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sides", nargs="*", default=[f"now={sys.executable}"], metavar="LABEL=PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sides = dict(side.split("=", 1) for side in arguments.sides)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, medians of {arguments.rounds} rounds")
    for name, command in COMMANDS.items():
        for python in sides.values():
            measure(python, command)  # fills bytecode and file caches
        turns = [{label: measure(python, command) for label, python in sides.items()} for _ in range(arguments.rounds)]
        for label in sides:
            wall, processor = (statistics.median(turn[label][kind] for turn in turns) for kind in (0, 1))
            print(f"{name:30} {label:8} {wall:6.2f} s, {processor:6.2f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
