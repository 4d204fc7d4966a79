"""A task of reasoning-gym: Alice in Wonderland's siblings. SFT for the form of an answer, then GRPO. Minutes on a CPU.

    pip install "posttrain[tasks]"
    python recipes/wins/siblings.py --seed 0 --output runs/siblings-0      (from the repository's root)

"Susan has 5 sisters and she also has 3 brothers. How many sisters does James's brother have?" Large models get it wrong
(arXiv:2406.02061): the answer is one more than Susan's sisters, because Susan is a sister, too. minimind2-small, a chat
model of 26 million parameters, learns to answer with the right number, from 2 to 7, and remains a chat model.
statements.py explains what keeps it one: its own complete answers as replay in the SFT, the same prompts in the steps
of RL, and steps that hold every answer equally often.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.data.read import read_rows
from posttrain.evaluate.own_answers import own_answers
from posttrain.tasks.reasoning_gym import ReasoningGymTask, score

sys.path.insert(0, str(Path(__file__).parents[2]))  # the root, however this file is started
from recipes.wins.public_data import SHARED, require

MODEL = str(SHARED / "models" / "minimind2-small")
ULTRAFEEDBACK = SHARED / "preference" / "ultrafeedback_train.jsonl.gz"
OTHERS = SHARED / "sft" / "self_instruct_seed_tasks.jsonl"
TASK = ReasoningGymTask(name="aiw", settings="task_type_weights=[1,0,0],max_entities=6")
HELD_OUT, TRAINED, DEMONSTRATED = 350, 650, 30
"""Number of held-out questions, of questions for RL, and of those that SFT sees, too."""


def right(completion: str, reasoning_gym: Mapping[str, Any] | None = None) -> float:
    """The reward: 1 for the right number. Prompts that do not belong to the task are there for the KL term."""
    return 0.0 if reasoning_gym is None else float(score(completion, dict(reasoning_gym)) == 1)


def write_data(folder: Path) -> None:
    """Write the held-out data, the training data and the replay, which are the same for every seed."""
    train = TASK.rows(TRAINED, split="train")
    write(folder / "heldout.jsonl", TASK.rows(HELD_OUT, split="eval"))
    write(folder / "train.jsonl", train)
    write(folder / "sft.jsonl", [{"prompt": r["prompt"], "completion": r["answer"]} for r in train[:DEMONSTRATED]])
    write(folder / "replay_prompts.jsonl", [{"prompt": text} for text in replay_prompts()])
    replay = own_answers(MODEL, str(folder / "replay_prompts.jsonl"), temperature=0.7, max_completion_length=80)
    write(folder / "replay.jsonl", replay)


def replay_prompts(count: int = 420) -> list[str]:
    """Short English prompts from UltraFeedback. The measurement of forgetting uses none of them."""
    texts = dict.fromkeys(str(row.values["prompt"]) for row in read_rows(str(ULTRAFEEDBACK)))
    return [text for text in texts if len(text) < 150 and text.isascii()][:count]


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def config(data: Path) -> dict[str, Any]:
    return {
        "model": {"path": MODEL, "device": "cpu"},
        "evaluation": {"prompts": HELD_OUT, "samples": 0, "other_prompts": str(OTHERS)},
        "checkpoint": {"every": 0},
        "stages": [
            {
                "algorithm": "sft",
                "data": {
                    "train": [str(data / "sft.jsonl"), str(data / "replay.jsonl")],
                    "max_length": 128,
                    "eval_fraction": 0.1,
                },
                "train": {
                    "steps": 12,
                    "prompts_per_step": 16,
                    "learning_rate": 5e-6,
                    "schedule": "linear",
                    "warmup_steps": 2,
                },
            },
            {
                "algorithm": {"name": "grpo", "kl_coef": 0.2},
                "data": {
                    "train": [str(data / "train.jsonl"), str(data / "replay_prompts.jsonl")],
                    "eval": str(data / "heldout.jsonl"),
                    "stratify": "answer",
                },
                "rewards": [{"function": f"{Path(__file__).resolve()}:right"}],
                "check": [{"name": "regex", "settings": {"pattern": "[2-7]"}}],
                "sampling": {"group_size": 8, "max_completion_length": 6},
                "train": {
                    "steps": 28,
                    "prompts_per_step": 32,
                    "learning_rate": 2e-6,
                    "schedule": "linear",
                    "warmup_steps": 8,
                },
                "guards": {"max_truncated": 1.0},  # answers to the replayed prompts are cut on purpose
                "alarms": {"gap": None},  # their zeros are in the training reward, and in no held-out score
            },
        ],
    }


def run(seed: int, output: Path) -> Any:
    """Write the data next to the runs, once for all seeds, and train."""
    require(MODEL, ULTRAFEEDBACK, OTHERS)
    data = output.parent / "siblings-data"
    if not (data / "replay.jsonl").exists():
        data.mkdir(parents=True, exist_ok=True)
        write_data(data)
    return pt.train(config(data), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/siblings"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
