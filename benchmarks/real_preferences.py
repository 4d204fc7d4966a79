"""Preference losses and a reward model on real data, with a real small model: held-out pairs before and after.

    python benchmarks/real_preferences.py                        every run that is not on file yet
    python benchmarks/real_preferences.py ultrafeedback/dpo      this one again

Data and model are those of ../shared/data: minimind2-small (25.8 million parameters, a chat model) on UltraFeedback,
on HH-RLHF (harmless) and on the thumbs up and down of LLaMA-Factory's KTO set. Nothing is tuned: one learning rate for
all losses, the defaults of each. The table is docs/preferences-real.md, the numbers behind it
benchmarks/results/real_preferences.json.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.train.api import train

HERE = Path(__file__).parent
RESULT = HERE / "results" / "real_preferences.json"
PAGE = HERE.parent / "docs" / "preferences-real.md"
SHARED = HERE.parent.parent / "shared" / "data"
MODEL = SHARED / "models" / "minimind2-small"

DATA: dict[str, dict[str, Any]] = {
    "ultrafeedback": {
        "data.train": str(SHARED / "preference" / "ultrafeedback_train.jsonl.gz"),
        "data.eval": str(SHARED / "preference" / "ultrafeedback_eval.jsonl.gz"),
        "train.steps": 24,
    },
    "hh": {
        "data.train": str(SHARED / "preference" / "hh_rlhf_harmless_base_test.jsonl.gz"),
        "data.eval_fraction": 0.2,
        "train.steps": 40,
    },
    "kto_en": {
        "data.train": str(SHARED / "preference" / "llamafactory_kto_en_demo.jsonl.gz"),
        "data.eval_fraction": 0.4,
        "train.steps": 12,
    },
}
"""Short runs: about 190, 320 and 190 pairs or answers, of at most 640 tokens each."""
PAIR_LOSSES = ("dpo", "ipo", "kto", "simpo", "orpo", "reward_model")
RUNS = [*(f"{data}/{name}" for data in ("ultrafeedback", "hh") for name in PAIR_LOSSES), "kto_en/kto", "kto_en/bco"]
BASE: dict[str, Any] = {
    "model": {"path": str(MODEL), "device": "cpu", "precision": "bfloat16"},
    "data": {"max_length": 640, "max_dropped": 0.9},
    "train": {
        "prompts_per_step": 8,
        "learning_rate": 2e-5,
        "schedule": "linear",
        "warmup_steps": 2,
        "tokens_per_microbatch": 4096,
    },
    "evaluation": {"prompts": 150},
    "checkpoint": {"every": 0},
    "report": False,
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """One run, and what it measured of itself."""
    data, algorithm = name.split("/")
    rows = {"train.prompts_per_step": 16} if algorithm in ("kto", "bco") else {}  # as many answers
    started = time.perf_counter()
    run = train({**BASE, "algorithm": algorithm}, output=str(folder), **DATA[data], **rows)
    return {
        "run": name,
        "seconds": round(time.perf_counter() - started, 1),
        "evaluation": run.evaluation,
        "data": run.describe()["data"],
        "last_step": {key: value for key, value in run.metrics[-1].items() if not key.startswith(("time/", "memory/"))},
    }


def main(arguments: Sequence[str]) -> int:
    if not MODEL.is_dir():
        print(f"{MODEL} is not there: this measures on shared data", file=sys.stderr)
        return 2
    known = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    results: dict[str, Mapping[str, Any]] = {run["run"]: run for run in known}
    for name in arguments or [name for name in RUNS if name not in results]:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, Path(folder) / "run")
        print(name, results[name]["seconds"], json.dumps(results[name]["evaluation"])[:400], flush=True)
        runs = [results[name] for name in RUNS if name in results]
        machine = f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
        base = BASE | {"model": MODEL.name}
        RESULT.write_text(json.dumps({"machine": machine, "base": base, "runs": runs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
