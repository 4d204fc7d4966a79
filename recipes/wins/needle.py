"""A task of reasoning-gym: who likes what? SFT, then GRPO; the model stays a chat model. Minutes on a CPU.

    pip install "posttrain[tasks]"
    python recipes/wins/needle.py --seed 0 --output runs/needle-0      (from the repository's root)

minimind2-small, a chat model of 26 million parameters, reads two or three statements such as "Tayo accepts the color
red." and answers with the name that is asked for. What keeps it a chat model is explained in statements.py: its own
first sentences to other prompts as replay in the SFT, and those prompts, which are worth nothing, in the steps of RL.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.data.read import read_rows
from posttrain.evaluate.own_answers import own_answers
from posttrain.tasks.reasoning_gym import score

SHARED = Path(__file__).parents[3] / "shared" / "data"
MODEL = str(SHARED / "models" / "minimind2-small")
OTHERS = SHARED / "sft" / "self_instruct_seed_tasks.jsonl"
TASK = "reasoning_gym/needle_haystack:min_num_statements=2,max_num_statements=3"


def right(completion: str, reasoning_gym: Mapping[str, Any] | None = None) -> float:
    """The reward: 1 for the name. A prompt that is none of the task is there for the KL term."""
    return 0.0 if reasoning_gym is None else float(score(completion, dict(reasoning_gym)) == 1)


def write_replay(folder: Path, count: int = 240) -> None:
    """Short English prompts of UltraFeedback, and the model's own first sentences to them."""
    rows = read_rows(str(SHARED / "preference" / "ultrafeedback_train.jsonl.gz"))
    texts = dict.fromkeys(str(row.values["prompt"]) for row in rows)
    short = [text for text in texts if len(text) < 150 and text.isascii()][:count]
    prompts = folder / "replay_prompts.jsonl"
    write(prompts, [{"prompt": text} for text in short])
    write(
        folder / "replay.jsonl",
        own_answers(MODEL, str(prompts), temperature=0.7, max_completion_length=40, first_sentence=True),
    )


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def config(data: Path) -> dict[str, Any]:
    return {
        "model": {"path": MODEL, "device": "cpu"},
        "evaluation": {"prompts": 250, "samples": 0, "other_prompts": str(OTHERS)},
        "checkpoint": {"every": 0},
        "stages": [
            {
                "algorithm": "sft",
                "data": {
                    "train": [f"task:examples/{TASK}", str(data / "replay.jsonl")],
                    "max_rows": 256,
                    "max_length": 128,
                    "eval_fraction": 0.1,
                },
                "train": {
                    "steps": 40,
                    "prompts_per_step": 16,
                    "learning_rate": 1e-5,
                    "schedule": "linear",
                    "warmup_steps": 2,
                },
            },
            {
                "algorithm": {"name": "grpo", "kl_coef": 0.1},
                "data": {
                    "train": [f"task:{TASK}", str(data / "replay_prompts.jsonl")],
                    "eval": f"task:{TASK}",
                    "max_rows": 512,
                },
                "rewards": [{"function": f"{Path(__file__).resolve()}:right"}],
                "check": [{"name": "regex", "settings": {"pattern": "[A-Z][a-z-]+"}}],
                "sampling": {"group_size": 8, "max_completion_length": 8},
                "train": {
                    "steps": 40,
                    "prompts_per_step": 24,
                    "learning_rate": 5e-6,
                    "schedule": "linear",
                    "warmup_steps": 4,
                },
                "guards": {"max_truncated": 1.0},  # answers to the replayed prompts are cut on purpose
            },
        ],
    }


def run(seed: int, output: Path) -> Any:
    """Write the data beside the run, and train."""
    data = output.parent / f"{output.name}-data"
    data.mkdir(parents=True, exist_ok=True)
    write_replay(data)
    return pt.train(config(data), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/needle"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
