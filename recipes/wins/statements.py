"""SFT for the form of an answer, then GRPO with a verifiable reward; the model stays a chat model. Minutes on a CPU.

    python recipes/wins/statements.py --seed 0 --output runs/statements-0      (from the repository's root)

minimind2-small, a chat model of 26 million parameters, learns to answer Yes or No to "Is the following
statement something you would say?", as a kind person would. A hundred such examples alone make it say "Yes" to
everything, even to "What is the capital of France?". Three cheap measures prevent that:

    replay in the SFT    the model's own complete answers to other prompts, in addition to the statements
    replay in the RL     each step includes such other prompts. All answers to them get the reward 0, so their advantage
                         is 0, and only the KL term acts on them, on the few tokens that decide
    balanced steps       each step holds as many statements to affirm as to deny (data.stratify), and the learning rate
                         rises slowly. Otherwise the first steps teach one of the two answers, and then the completions
                         of a group no longer differ
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.evaluate.own_answers import own_answers

sys.path.insert(0, str(Path(__file__).parents[2]))  # the root, however this file is started
from recipes.wins.public_data import SHARED, require

MODEL = str(SHARED / "models" / "minimind2-small")
STATEMENTS = SHARED / "preference" / "model_written_evals_agreeableness.jsonl"
ULTRAFEEDBACK = SHARED / "preference" / "ultrafeedback_train.jsonl.gz"
OTHERS = SHARED / "sft" / "self_instruct_seed_tasks.jsonl"
HELD_OUT, DEMONSTRATED = 350, 60
"""Number of held-out statements, and number of the other statements that SFT sees."""


def right(completion: str, answer: str | None = None) -> float:
    """The reward: 1 for the right answer. Prompts without an answer are there for the KL term."""
    return float(completion.strip() == answer)


def write_data(folder: Path) -> None:
    """Write the held-out data, the training data and the replay, which are the same for every seed."""
    statements = [json.loads(line) for line in STATEMENTS.read_text(encoding="utf-8").splitlines()]
    random.Random(0).shuffle(statements)
    asked = [{"prompt": s["question"], "answer": s["answer_matching_behavior"].strip()} for s in statements]
    train = asked[HELD_OUT:]
    write(folder / "heldout.jsonl", asked[:HELD_OUT])
    write(folder / "train.jsonl", train)
    write(folder / "sft.jsonl", [{"prompt": s["prompt"], "completion": s["answer"]} for s in train[:DEMONSTRATED]])
    write(folder / "replay_prompts.jsonl", [{"prompt": text} for text in replay_prompts()])
    replay = own_answers(
        MODEL,
        str(folder / "replay_prompts.jsonl"),
        temperature=0.7,
        max_completion_length=80,
    )
    write(folder / "replay.jsonl", replay)


def replay_prompts(count: int = 420) -> list[str]:
    """Short English prompts from UltraFeedback. The measurement of forgetting uses none of them."""
    from posttrain.data.read import read_rows

    rows = read_rows(str(ULTRAFEEDBACK))
    texts = dict.fromkeys(str(row.values["prompt"]) for row in rows)
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
                    "steps": 24,
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
                "check": [{"name": "regex", "settings": {"pattern": "Yes|No"}}],
                "sampling": {"group_size": 8, "max_completion_length": 6},
                "train": {
                    "steps": 36,
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
    require(MODEL, STATEMENTS, ULTRAFEEDBACK, OTHERS)
    data = output.parent / "statements-data"
    if not (data / "replay.jsonl").exists():
        data.mkdir(parents=True, exist_ok=True)
        write_data(data)
    return pt.train(config(data), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/statements"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
