"""Preferences of people, without a reward model: RPO, which is DPO with a likelihood term. Half an hour on a CPU.

    pip install "posttrain[gguf]"
    python recipes/wins/preferred.py --seed 0 --output runs/preferred-0      (from the repository's root)

SmolLM2-135M-Instruct learns from the pairs of HH-RLHF's harmless set themselves: two answers to a question, of which a
person preferred one. Before, it answers most of these questions with a lecture that has no end within 64 tokens, and
complies where a person would not. The data are

    people       a thousand dialogues, the preferred answer against the other one
    replay       questions of UltraFeedback, the model's own answer against an answer to something else from the
                 dialogues: what it wrote elsewhere stays likely, and "I'm sorry" is not the answer to everything

DPO alone hardly changes what a small model writes, as it would write neither answer (docs/wins.md). The likelihood term
teaches it how the preferred ones are written. No reward is raised here, so none can be gamed: two judges score its
answers to held-out questions before and after. Both learned from 500 pairs that it never saw:

    judge        a reward model of the same size
    words        logistic regression on words

The judge is trained once, for all seeds, in the folder preferred-data beside the runs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.config import ModelConfig
from posttrain.evaluate.own_answers import own_answers

sys.path.insert(0, str(Path(__file__).parents[2]))  # the root, however this file is started
from recipes.wins import learned_reward
from recipes.wins.learned_reward import (
    as_chat,
    is_trained,
    pairs,
    read_dialogues,
    replay_prompts,
    split,
    word_weights,
    write,
)
from recipes.wins.siblings_smollm2 import downloaded

REPLAYED = 2
"""How often each replayed pair stands in the data."""
HELD_OUT = 300
"""Most pairs that are held out; their questions are answered."""


def write_data(folder: Path, model: str) -> None:
    """The same for every seed."""
    held_out, judged, trained = split(read_dialogues())
    people = pairs(trained)
    write(folder / "replay.jsonl", [{"prompt": as_chat(text)} for text in replay_prompts()])
    write(folder / "pairs.jsonl", [*people, *REPLAYED * replay_pairs(folder / "replay.jsonl", people, model)])
    write(folder / "heldout_pairs.jsonl", pairs(held_out))
    write(folder / "judge_pairs.jsonl", pairs(judged))
    (folder / "words.json").write_text(json.dumps(word_weights(pairs(judged))), encoding="utf-8")


def replay_pairs(prompts: Path, people: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """The model's own answers, where they end within 80 tokens, against answers to other questions."""
    own = own_answers(ModelConfig(path=model, device="cpu"), str(prompts), samples=2, max_completion_length=80)
    others = [pair[side] for pair in people for side in ("chosen", "rejected")]
    draw = random.Random(0)
    return [
        {
            "prompt": row["prompt"],
            "chosen": [{"role": "assistant", "content": row["completion"]}],
            "rejected": draw.choice(others),
        }
        for row in own
    ]


def judge_config(data: Path, model: str) -> dict[str, Any]:
    return {
        "model": {"path": model, "device": "cpu"},
        "checkpoint": {"every": 0},
        "algorithm": {"name": "reward_model", "center_coef": 0.01},
        "data": {
            "train": str(data / "judge_pairs.jsonl"),
            "eval": str(data / "heldout_pairs.jsonl"),
            "max_length": 256,
        },
        "train": {
            "steps": 84,
            "prompts_per_step": 16,
            "learning_rate": 2e-5,
            "schedule": "linear",
            "warmup_steps": 6,
        },
        "evaluation": {"prompts": HELD_OUT},
    }


def config(data: Path, model: str, judge: Path) -> dict[str, Any]:
    words = f"{Path(learned_reward.__file__).resolve()}:words_judge"
    return {
        "model": {"path": model, "device": "cpu"},
        "checkpoint": {"every": 0},
        "algorithm": {"name": "rpo", "beta": 0.1, "alpha": 1.0},
        "data": {
            "train": str(data / "pairs.jsonl"),
            "eval": str(data / "heldout_pairs.jsonl"),
            "max_length": 256,
        },
        "train": {
            "steps": 72,
            "prompts_per_step": 16,
            "learning_rate": 2e-5,
            "schedule": "linear",
            "warmup_steps": 6,
        },
        "check": [
            {"model": str(judge), "settings": {"normalize": True}, "label": "judge"},
            {"function": words, "label": "words", "settings": {"weights": str(data / "words.json")}},
        ],
        "evaluation": {
            "prompts": HELD_OUT,
            "writing": HELD_OUT,
            "other_prompts": str(learned_reward.OTHERS),
        },
    }


def prepared(folder: Path) -> tuple[str, Path]:
    """The model, the data and the judge, once for all seeds; where the model and the judge lie."""
    folder.mkdir(parents=True, exist_ok=True)
    model, judge = downloaded(folder), folder / "judge"
    if not is_trained(judge):
        shutil.rmtree(judge, ignore_errors=True)
        write_data(folder, model)
        pt.train(judge_config(folder, model), seed=0, output=str(judge))
    return model, judge


def run(seed: int, output: Path) -> Any:
    data = output.parent / "preferred-data"
    model, judge = prepared(data)
    return pt.train(config(data, model, judge), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/preferred"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
