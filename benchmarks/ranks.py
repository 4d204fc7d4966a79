"""Compare runs on 1, 2 and 4 ranks: their results, also after kills and after resuming with other numbers of ranks.

    python -m benchmarks.ranks same       # 12 steps of GRPO, PPO, DPO and SFT on 1, 2 and 4 ranks
    python -m benchmarks.ranks kills      # ten kills of random ranks, with 2 ranks; the run restarts itself
    python -m benchmarks.ranks resharded  # 4 -> 2 -> 1 -> 4 ranks
    python -m benchmarks.ranks            # all of it

All ranks compute on the CPU: this is a proof, and says nothing about speed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from benchmarks.speed.machine import origin
from safetensors.torch import load_file

import posttrain  # noqa: F401  the tasks
from posttrain.sources import ROWS

RESULT = Path(__file__).parent / "results" / "ranks.json"
RANK = "posttrain.train.rank"
STEPS, SIZES = 12, (1, 2, 4)
BASE: dict[str, Any] = {
    "model": {"path": "tiny:sort", "precision": "float32"},
    "evaluation": {"prompts": 32, "samples": 2},
    "report": False,
}
TRAIN = {"steps": STEPS, "prompts_per_step": 8, "learning_rate": 1e-4, "tokens_per_microbatch": 128}
SAMPLED = {"rewards": ["exact_match"], "sampling": {"group_size": 4, "max_completion_length": 8}}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo", "kl_coef": 0.02}, "data": {"train": "task:sort"}, **SAMPLED},
    "ppo": {"algorithm": "ppo", "data": {"train": "task:sort"}, **SAMPLED},
    "dpo": {"algorithm": "dpo", "data": {"train": "PAIRS"}},
    "sft": {"algorithm": "sft", "data": {"train": "PAIRS", "columns": {"completion": "chosen"}}},
}


def config(name: str, folder: Path, size: int, **train: Any) -> dict[str, Any]:
    """The settings of a run on `size` ranks."""
    settings = {**BASE, **RUNS[name], "train": {**TRAIN, "devices": size, **train}}
    if settings["data"]["train"] == "PAIRS":
        settings["data"] = settings["data"] | {"train": str(pairs(folder))}
    return settings


def pairs(folder: Path) -> Path:
    """Write pairs of right and wrong answers, unless they exist, and return the file."""
    path, dice = folder / "pairs.jsonl", random.Random(0)
    if not path.is_file():
        with path.open("w") as out:
            for row in ROWS["task"]("sort").rows(256):
                wrong = "".join(dice.sample(row["answer"], len(row["answer"])))
                pair = {"prompt": row["prompt"], "chosen": row["answer"], "rejected": wrong}
                out.write(json.dumps(pair) + "\n")
    return path


def start(folder: Path, settings: dict[str, Any] | None, **changes: Any) -> subprocess.Popen[bytes]:
    """Start `train` with these settings, or `resume` of the folder with these changes, in a separate process."""
    call = (
        f"resume({str(folder)!r}, **{changes!r})"
        if settings is None
        else f"train({settings | {'output': str(folder)}!r})"
    )
    return subprocess.Popen([sys.executable, "-c", f"import posttrain as pt; pt.{call}"])


def run(folder: Path, settings: dict[str, Any] | None, **changes: Any) -> None:
    started = start(folder, settings, **changes)
    assert started.wait() == 0, f"{folder}: exit code {started.returncode}"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max(folder.glob("checkpoints/step-*"))
    return load_file(newest / "model" / "model.safetensors")


def difference(one: Path, other: Path) -> float:
    """The largest difference of a weight, relative to the largest weight of its tensor."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max() / ours[n].abs().max()) for n in ours)


def measured(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "evaluation.json").read_text())
    return {when: found[when] for when in ("baseline", "trained")}


def same(place: Path) -> Iterator[dict[str, Any]]:
    for name in RUNS:
        folders = {size: place / f"{name}-{size}" for size in SIZES}
        for size, folder in folders.items():
            run(folder, config(name, place, size))
        for size in SIZES[1:]:
            yield {
                "run": name,
                "ranks": size,
                "largest_difference_of_a_weight": difference(folders[1], folders[size]),
                "evaluations_equal": scores(folders[1]) == scores(folders[size]),
                "trained": moved(folders[1]),
            }


def scores(folder: Path) -> Any:
    """The measurements of held-out rows, row by row, to three significant digits."""
    found: list[Any] = []
    for when in ("baseline", "trained"):
        path = folder / "evaluations" / f"{when}.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        found += [rounded(json.loads(line)) for line in lines]
    return found


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def moved(folder: Path) -> float:
    """How far training has moved a weight, by the same measure. Compare differences with this number."""
    first, last = min(folder.glob("checkpoints/step-*")), max(folder.glob("checkpoints/step-*"))
    ours, theirs = (load_file(one / "model" / "model.safetensors") for one in (first, last))
    return max(float((ours[n] - theirs[n]).abs().max() / ours[n].abs().max()) for n in ours)


def kills(place: Path, times: int = 10) -> Iterator[dict[str, Any]]:
    """Kill one rank of a run at a random moment, several times. The run must end like the undisturbed run."""
    settings, dice = config("grpo", place, 2, restarts=50), random.Random(1)
    settings["checkpoint"] = {"every": 2}
    whole, runs, done = place / "undisturbed", 0, 0
    run(whole, settings)
    while done < times:
        folder, runs = place / f"killed-{runs}", runs + 1
        started, began = start(folder, settings), time.monotonic()
        victims: list[str] = []
        while started.poll() is None and done + len(victims) < times:
            time.sleep(dice.uniform(4, 14))
            ranks = ranks_of(started)
            if len(ranks) == 2:
                number, how = dice.randrange(2), dice.choice([signal.SIGKILL, signal.SIGABRT])
                os.kill(ranks[number], how)
                victims.append(f"rank {number} by {how.name}")
        code = started.wait()
        done += len(victims)
        yield {
            "killed": victims,
            "exit": code,
            "seconds": time.monotonic() - began,
            "bits_equal": all(torch.equal(x, weights(whole)[n]) for n, x in weights(folder).items()),
            "steps": [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
            == list(range(1, STEPS + 1)),
            "left": [p.pid for p in psutil.process_iter(["cmdline"]) if RANK in (p.info["cmdline"] or [])],
        }


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """Process ids of the ranks, rank 0 first."""
    try:
        children = psutil.Process(launcher.pid).children()
        return sorted(child.pid for child in children if RANK in child.cmdline())
    except psutil.Error:
        return []


def resharded(place: Path) -> Iterator[dict[str, Any]]:
    """Continue a run with another number of ranks after every three steps."""
    whole, folder = place / "one", place / "resharded"
    run(whole, config("ppo", place, 1))
    run(folder, config("ppo", place, 4, steps=3))
    for steps, size in ((6, 2), (9, 1), (12, 4)):
        run(folder, None, steps=steps, devices=size)
    yield {"ranks": [4, 2, 1, 4], "largest_difference_of_a_weight": difference(whole, folder), "trained": moved(whole)}


PARTS = {"same": same, "kills": kills, "resharded": resharded}


def main(names: list[str]) -> int:
    found = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as place:
            found[name] = []
            for line in PARTS[name](Path(place)):
                print(json.dumps(line), flush=True)
                found[name].append(line)
        RESULT.write_text(json.dumps(found | {"origin": origin()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
