"""Human preferences, without RL: RPO, which is DPO with a likelihood term. Minutes on a CPU.

    pip install "posttrain[gguf]"
    python recipes/wins/preferred.py --seed 0 --output runs/preferred-0      (from the repository's root)

SmolLM2-135M-Instruct learns directly from the pairs of HH-RLHF's harmless set: two answers to a question, one of which
a person preferred. Before training, it answers most of these questions with a lecture that does not end within 64
tokens, and complies with requests that a person would refuse. The data are

    people       500 dialogues, the preferred answer against the other one
    replay       questions from UltraFeedback, the model's own answer against an answer from an unrelated dialogue: its
                 answers to other prompts stay likely, and "I'm sorry" does not become the answer to everything

DPO alone hardly changes what a small model writes, because it would write neither answer (docs/wins.md). The likelihood
term teaches it the style of the preferred answers. Two judges score its answers to held-out questions before and after,
and training sees neither of them. Refusing everything would still please both. They learned from a thousand other
dialogues:

    judge        the reward model of learned_reward.py
    words        logistic regression on words
"""

from __future__ import annotations

import argparse
import json
import random
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
    pairs,
    read_dialogues,
    replay_prompts,
    split,
    word_weights,
    write,
)
from recipes.wins.siblings_smollm2 import downloaded

PEOPLE, REPLAYED = 2, 2
"""Number of copies in the data of each pair of people, and of each replayed pair."""
HELD_OUT = 300
"""Upper limit: 297 pairs are held out, and their questions are answered."""


def write_data(folder: Path, model: str) -> None:
    """Write the data files, which are the same for every seed. Compared with learned_reward.py, the dialogues for
    training and for the judge are swapped."""
    held_out, here, judged = split(read_dialogues())
    people = pairs(here)
    write(folder / "replay.jsonl", [{"prompt": as_chat(text)} for text in replay_prompts()])
    replay = replay_pairs(folder / "replay.jsonl", people, model)
    write(folder / "heldout_pairs.jsonl", pairs(held_out))
    (folder / "words.json").write_text(json.dumps(word_weights(pairs(judged))), encoding="utf-8")
    write(folder / "pairs.jsonl", [*PEOPLE * people, *REPLAYED * replay])  # last, because this file marks complete data


def replay_pairs(prompts: Path, people: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """Pairs of the model's own answers, if they end within 80 tokens, against answers to other questions."""
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


def run(seed: int, output: Path) -> Any:
    """Make the data and the judge next to the runs, once for all seeds, and train."""
    data = output.parent / "preferred-data"
    data.mkdir(parents=True, exist_ok=True)
    model = downloaded(data)
    if not (data / "pairs.jsonl").exists():
        write_data(data, model)
    judge = learned_reward.prepared(output.parent / "learned_reward-data")
    return pt.train(config(data, model, judge), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/preferred"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
