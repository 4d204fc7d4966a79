"""Human preferences: a reward model trained on pairs judged by people, then RLOO against it. Minutes on a CPU.

    python recipes/wins/learned_reward.py --seed 0 --output runs/learned-0      (from the repository's root)

minimind2-small, a chat model of 26 million parameters, gets questions from HH-RLHF's harmless set, such as "Where can I
sell some pistols I got real quick?". It answers most of them with instructions that make no sense. A copy of it learns
from a thousand pairs which of two answers a person preferred, and RL raises that score. With that reward alone, RL
collapses within eight steps: every prompt, even a harmless one, gets "I'm sorry, but I can't assist with that." So five
rewards and the KL work together, and a check of another family watches:

    learned      the reward model's score, in standard deviations of its held-out answers; for prompts of the task only
    alike        minus 6 times the share of words that an answer has in common with answers to other prompts of its kind
    opening      minus 2 for an answer of fewer than eight words: the reward model likes "Certainly", which says nothing
    declined     minus 1 for an apology to a replayed prompt, because none of these is harmful
    repetition   minus the share of repeated sequences of three tokens, because the reward model does not see them
    replay       two of five prompts are other prompts. There the reward model has no influence, and the KL acts. Here
                 RLOO has the KL in the loss, where its gradient has less noise than in the reward
    words        the check: logistic regression on words, from pairs that neither the reward model nor RL has seen

Answers are sampled at a temperature of 0.4. At 0.6 an answer may be rare among the samples and still be the greedy one
for most prompts, and a penalty on samples does not see that. The run computes in float32: bfloat16 would round away
most of such small updates.

The reward model is trained once, for all seeds, in the folder learned_reward-data next to the runs. It begins with SFT
on preferred answers. The policy starts as the pretrained model.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.data.read import read_rows

sys.path.insert(0, str(Path(__file__).parents[2]))  # the root, however this file is started
from recipes.wins.public_data import SHARED, require

MODEL = str(SHARED / "models" / "minimind2-small")
PAIRS = SHARED / "preference" / "hh_rlhf_harmless_base_test.jsonl.gz"
ULTRAFEEDBACK = SHARED / "preference" / "ultrafeedback_train.jsonl.gz"
OTHERS = SHARED / "sft" / "self_instruct_seed_tasks.jsonl"
HELD_OUT, JUDGED, ASKED = 350, 600, 420
"""Number of dialogues whose first question is held out; of dialogues for the judge; and of first questions for RL. The
reward model learns from all other dialogues, and RL uses first questions of those."""
CONTEXT, LONGEST = 200, 450
"""Largest number of characters of a question with the earlier turns, and of an answer."""

FEWEST_WORDS = 8
"""Number of words in the shortest refusal of the pretrained model: "I'm sorry, but I can't assist with that."."""
APOLOGY = re.compile(
    r"\b(sorry|apologi[sz]e|can(?:no|['’])t (?:assist|help|provide)|(?:un|not )able to"
    r"|don['’]t have the (?:ability|capability))",
    re.IGNORECASE,
)

Message = dict[str, str]


# --- the data ---------------------------------------------------------------------------------------------------------


def turns(dialogue: str) -> list[Message]:
    parts = re.split(r"\n\n(Human|Assistant):", dialogue)[1:]
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]


def recent(messages: Sequence[Message]) -> list[Message]:
    """The last question, with as many earlier turns as there is room for."""
    kept = [messages[-1]]
    for message in reversed(messages[:-1]):
        if sum(len(one["content"]) for one in [message, *kept]) > CONTEXT:
            break
        kept.insert(0, message)
    return kept if kept[0]["role"] == "user" else kept[1:]


def read_dialogues() -> list[dict[str, Any]]:
    """Read dialogues with two different last answers, one of which a person preferred, in a fixed random order. There
    is one dialogue for each first question."""
    found: dict[str, dict[str, Any]] = {}
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            chosen, rejected = turns(row["chosen"]), turns(row["rejected"])
            same = chosen[:-1] == rejected[:-1] and chosen[-1] != rejected[-1]
            asked = len(chosen) > 1 and chosen[-2]["role"] == "user" and chosen[-1]["role"] == "assistant"
            if same and asked and chosen[-1]["content"] and rejected[-1]["content"]:
                pair = {"asked": chosen[:-1], "chosen": chosen[-1]["content"], "rejected": rejected[-1]["content"]}
                found.setdefault(chosen[0]["content"], pair)
    dialogues = list(found.values())
    random.Random(0).shuffle(dialogues)
    return dialogues


def pairs(dialogues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": recent(d["asked"]),
            "chosen": [{"role": "assistant", "content": d["chosen"]}],
            "rejected": [{"role": "assistant", "content": d["rejected"]}],
        }
        for d in dialogues
        if max(len(d["chosen"]), len(d["rejected"])) <= LONGEST and len(d["asked"][-1]["content"]) <= CONTEXT
    ]


def preferred(pairs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Short answers that a person preferred, for SFT."""
    return [{"prompt": p["prompt"], "completion": p["chosen"]} for p in pairs if len(p["chosen"][0]["content"]) <= 160]


def as_chat(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def questions(dialogues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first question of each dialogue, which needs no context."""
    return [{"prompt": d["asked"][:1], "task": 1} for d in dialogues if len(d["asked"][0]["content"]) <= CONTEXT]


def split(dialogues: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Any], list[Any]]:
    """Three disjoint lists of dialogues: held-out ones, those of the judge, and those of the reward model and of RL."""
    held_out = [d for d in dialogues if len(d["asked"][0]["content"]) <= CONTEXT][:HELD_OUT]
    others = [d for d in dialogues if d not in held_out]
    return held_out, others[:JUDGED], others[JUDGED:]


def write_data(folder: Path) -> None:
    """Write the data files, which are the same for every seed."""
    held_out, judged, trained = split(read_dialogues())
    write(folder / "heldout.jsonl", questions(held_out))
    write(folder / "prompts.jsonl", questions(trained)[:ASKED])
    write(folder / "replay.jsonl", [{"prompt": as_chat(text), "task": 0} for text in replay_prompts()])
    write(folder / "pairs.jsonl", pairs(trained))
    write(folder / "heldout_pairs.jsonl", pairs(held_out))
    write(folder / "sft.jsonl", preferred(pairs(trained)))
    write(folder / "heldout_sft.jsonl", preferred(pairs(held_out)))
    (folder / "judge.json").write_text(json.dumps(word_weights(pairs(judged))), encoding="utf-8")


def replay_prompts(count: int = 280) -> list[str]:
    """Short English prompts from UltraFeedback. The measurement of forgetting uses none of them."""
    texts = dict.fromkeys(str(row.values["prompt"]) for row in read_rows(str(ULTRAFEEDBACK)))
    return [text for text in texts if len(text) < 150 and text.isascii()][:count]


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a file atomically, so that a file that exists is complete."""
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


# --- the independent judge: words alone -------------------------------------------------------------------------------


def words(text: str) -> set[str]:
    """The words of a text, and its pairs of neighbouring words."""
    found = re.findall(r"[a-z']+|[?!.]", text.lower().replace("’", "'"))
    return {*found, *(f"{a} {b}" for a, b in pairwise(found))}


def features(text: str, known: Mapping[str, Any]) -> dict[str, float]:
    """The features of a text, as a vector of length 1, so that a longer answer does not get a larger score."""
    found = words(text) & known.keys()
    return {word: len(found) ** -0.5 for word in found}


def word_weights(pairs: Sequence[Mapping[str, Any]], decay: float = 0.003) -> dict[str, Any]:
    """Fit a logistic regression that predicts the preferred answer from the words in which two answers differ."""
    import torch

    sides = [tuple(p[side][0]["content"] for side in ("chosen", "rejected")) for p in pairs]
    counts = Counter(word for side in sides for answer in side for word in words(answer))
    place = {word: n for n, word in enumerate(sorted(word for word, count in counts.items() if count >= 4))}
    differences = torch.zeros(len(sides), len(place), dtype=torch.float64)
    for n, side in enumerate(sides):
        for answer, sign in zip(side, (1.0, -1.0), strict=True):
            for word, value in features(answer, place).items():
                differences[n, place[word]] += sign * value
    weights = torch.zeros(len(place), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.softplus(-differences @ weights).mean() + decay * weights.square().sum() / 2
        value.backward()
        return value

    optimizer.step(loss)
    judge = {"words": dict(zip(place, weights.detach().tolist(), strict=True)), "mean": 0.0, "std": 1.0}
    scores = torch.tensor([judged(answer, judge) for side in sides for answer in side])
    return judge | {"mean": float(scores.mean()), "std": float(scores.std())}


def judged(answer: str, judge: Mapping[str, Any]) -> float:
    score = sum(judge["words"][word] * value for word, value in features(answer, judge["words"]).items())
    return (score - judge["mean"]) / judge["std"]


# --- what the runs call -----------------------------------------------------------------------------------------------


def task(completion: Any, task: int = 0) -> float:
    """1 for a prompt of the task. The learned reward counts only there."""
    return float(task)


def opening(completion: Any) -> float:
    """1 for an answer that stops before it says anything."""
    return float(len(text_of(completion).split()) < FEWEST_WORDS)


def declined(completion: Any, task: int = 0) -> float:
    """1 for an apology to a prompt that does not belong to the task."""
    return float(not task and APOLOGY.search(text_of(completion)) is not None)


def words_judge(completion: Any, weights: str) -> float:
    """The check: the judge's score, in standard deviations over the answers of its pairs."""
    return judged(text_of(completion), read_judge(weights))


@cache
def read_judge(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def alike(completions: list[Any], groups: list[int], task: list[int]) -> list[float]:
    """The mean share of words that an answer has in common with the answers to other questions of its kind."""
    answers = [(words(text_of(one)), *of) for one, *of in zip(completions, groups, task, strict=True)]
    found = []
    for answer, group, kind in answers:
        others = [other for other, of, its_kind in answers if of != group and its_kind == kind]
        shares = [len(answer & other) / max(1, len(answer | other)) for other in others]
        found.append(sum(shares) / max(1, len(shares)))
    return found


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


# --- the runs ---------------------------------------------------------------------------------------------------------


def reward_model_config(data: Path) -> dict[str, Any]:
    """The pipeline for the reward model: SFT on the preferred answers, then the reward model. RL's policy uses neither
    as its start."""
    return {
        "model": {"path": MODEL, "device": "cpu"},
        "checkpoint": {"every": 0},
        "stages": [
            {
                "algorithm": "sft",
                "data": {"train": str(data / "sft.jsonl"), "eval": str(data / "heldout_sft.jsonl"), "max_length": 200},
                "train": {
                    "steps": 48,
                    "prompts_per_step": 16,
                    "learning_rate": 1e-5,
                    "schedule": "linear",
                    "warmup_steps": 4,
                },
                "evaluation": {"prompts": 100},
            },
            {
                "name": "reward_model",
                "algorithm": {"name": "reward_model", "center_coef": 0.01},
                "model": "stage:sft",
                "data": {
                    "train": str(data / "pairs.jsonl"),
                    "eval": str(data / "heldout_pairs.jsonl"),
                    "max_length": 320,
                },
                "train": {
                    "steps": 126,
                    "prompts_per_step": 16,
                    "learning_rate": 3e-5,
                    "schedule": "linear",
                    "warmup_steps": 8,
                },
                "evaluation": {"prompts": HELD_OUT},
            },
        ],
    }


def config(data: Path, reward_model: Path) -> dict[str, Any]:
    here = Path(__file__).resolve()
    return {
        "model": {"path": MODEL, "device": "cpu", "precision": "float32"},
        "algorithm": {
            "name": "policy_gradient",  # RLOO, except that the KL is in the loss
            "baseline": "leave_one_out",
            "normalisation": "none",
            "ratio": "none",
            "trust_region": "none",
            "aggregation": "sequence_sum",
            "kl": "loss",
            "kl_coef": 0.1,
        },
        "data": {
            "train": [str(data / "prompts.jsonl"), str(data / "replay.jsonl")],
            "eval": str(data / "heldout.jsonl"),
            "stratify": "task",
        },
        "rewards": [
            {"function": f"{here}:task", "weight": 0},
            {"model": str(reward_model), "settings": {"normalize": True}, "label": "learned", "gate": "task"},
            {"function": f"{here}:alike", "weight": -6},
            {"function": f"{here}:opening", "weight": -2},
            {"function": f"{here}:declined", "weight": -1},
            {"name": "repetition", "settings": {"n": 3}},
        ],
        "check": [
            {"function": f"{here}:words_judge", "label": "words", "settings": {"weights": str(data / "judge.json")}}
        ],
        "sampling": {"group_size": 8, "max_completion_length": 40, "temperature": 0.4, "max_batch_rows": 128},
        "train": {
            "steps": 24,
            "prompts_per_step": 15,
            "learning_rate": 4e-6,
            "schedule": "linear",
            "warmup_steps": 6,
            "tokens_per_microbatch": 4096,
        },
        "evaluation": {"prompts": HELD_OUT, "samples": 0, "other_prompts": str(OTHERS)},
        "checkpoint": {"every": 0},
        "guards": {"max_truncated": 1.0},  # answers to the replayed prompts are cut on purpose
        "alarms": {"gap": None, "check_sample": 0},  # the check scores held-out answers only: a score has no full mark
    }


def is_trained(run: Path) -> bool:
    """Whether a run is finished. A killed run has only the measurement before training."""
    measured = run / "evaluation.json"
    return measured.exists() and "trained" in json.loads(measured.read_text(encoding="utf-8"))


def prepared(folder: Path) -> Path:
    """Make the data and the reward model, once for all seeds, and return the folder of the reward model."""
    require(MODEL, PAIRS, ULTRAFEEDBACK, OTHERS)
    model = folder / "reward_model"
    if not is_trained(model / "02-reward_model"):
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        pt.train(reward_model_config(folder), seed=0, output=str(model))
    return model / "02-reward_model"


def run(seed: int, output: Path) -> Any:
    data = output.parent / "learned_reward-data"
    return pt.train(config(data, prepared(data)), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/learned_reward"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
