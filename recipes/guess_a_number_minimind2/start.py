"""Make the model that the recipe starts with, in minutes: MiniMind2-small trained on games of a forgetful player.

python recipes/guess_a_number_minimind2/start.py        writes model/, games.jsonl and rows.jsonl next to this file
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import posttrain

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "guess_a_number"))
from game import best_score, forgetful_game  # noqa: E402, F401

REAL_MODEL = HERE.parents[1] / ".." / "shared" / "data" / "models" / "minimind2-small"
ASKED = {"role": "user", "content": "Guess a number from 1 to 7."}
SHOWN = 960
WARM_UP = {"steps": 40, "prompts_per_step": 24, "learning_rate": 2e-4, "schedule": "linear", "warmup_steps": 5}


def messages(rounds: list[tuple[str, str]]) -> list[dict[str, str]]:
    """A game as a conversation that ends with the last guess."""
    said = [({"role": "assistant", "content": guess}, {"role": "user", "content": answer}) for guess, answer in rounds]
    return [ASKED, *chain.from_iterable(said)][:-1]


def make(folder: Path, *, seed: int = 0) -> Path:
    """Make the model, as a Hugging Face folder, and the rows."""
    dice = random.Random(seed)
    _write(folder / "games.jsonl", [{"messages": messages(forgetful_game(dice))} for _ in range(SHOWN)])
    _write(folder / "rows.jsonl", [{"prompt": [ASKED]}] * 64)
    with tempfile.TemporaryDirectory() as run:
        trained = posttrain.train(
            {
                "model": {"path": str(REAL_MODEL), "device": "cpu"},
                "algorithm": "sft",
                "data": {"train": str(folder / "games.jsonl"), "eval_fraction": 0.01},
                "evaluation": {"prompts": 8},
                "train": WARM_UP,
                "checkpoint": {"every": 0},
                "output": f"{run}/sft",
                "report": False,
                "seed": seed,
            }
        )
        shutil.copytree(str(trained.model_path), folder / "model", dirs_exist_ok=True)
    return folder


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    make(HERE)
