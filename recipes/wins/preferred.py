"""DPO on the model's own answers, ranked by a reward model that learned what people prefer. Minutes on a CPU.

    python recipes/wins/preferred.py --seed 0 --output runs/preferred-0      (from the repository's root)

People were shown two answers to a harmful, rude or odd question and preferred one (HH-RLHF, harmless). DPO on these
pairs themselves hardly moves what a small model says, because it would never write either answer. So a reward model
learns from the pairs, minimind2-small (26 million parameters) answers such questions eight times, and DPO learns from
the best and the worst of its own answers. Two things keep it a chat model, and one is watched:

    replay pairs     to other prompts its own answer is chosen, and its own refusal is rejected: else it refuses all
    few small steps  each pair is seen twice, at a low learning rate
    a second judge   the words that other people preferred in other dialogues; and how much the answers repeat
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import posttrain as pt
from posttrain.data.read import read_rows

SHARED = Path(__file__).parents[3] / "shared" / "data"
MODEL = str(SHARED / "models" / "minimind2-small")
PAIRS = SHARED / "preference" / "hh_rlhf_harmless_base_test.jsonl.gz"
ULTRAFEEDBACK = SHARED / "preference" / "ultrafeedback_train.jsonl.gz"
OTHERS = SHARED / "sft" / "self_instruct_seed_tasks.jsonl"
HELD_OUT, JUDGED, ASKED, REPLAYED = 250, 600, 128, 100
"""Dialogues whose first question is held out; those that the judge learned from; of the others, which the reward model
learned from, those whose first question is answered in training; and other prompts."""
LONGEST = 400
"""Most characters of a question, of the dialogue before an answer, and of an answer."""
ANSWER = 56
"""Most tokens of an answer."""


# --- people's preferences ---------------------------------------------------------------------------------------------


def read_dialogues() -> list[dict[str, Any]]:
    """Dialogues with two last answers, of which a person preferred one, in a fixed random order. Those that begin with
    the same question are one, so that no question is on two sides of a split."""
    found: dict[str, dict[str, Any]] = {}
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            chosen, rejected = turns(row["chosen"]), turns(row["rejected"])
            if chosen[:-1] == rejected[:-1] and chosen[-1] != rejected[-1] and len(chosen[0]["content"]) <= LONGEST:
                pair = {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}
                found.setdefault(chosen[0]["content"].strip().lower(), pair)
    dialogues = list(found.values())
    random.Random(0).shuffle(dialogues)
    return dialogues


def turns(dialogue: str) -> list[dict[str, str]]:
    parts = re.split(r"\n\n(Human|Assistant):", dialogue)[1:]
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]


def short(pair: Mapping[str, Any]) -> bool:
    asked = sum(len(turn["content"]) for turn in pair["prompt"])
    answers = [pair[side][0]["content"] for side in ("chosen", "rejected")]
    return asked <= LONGEST and all(0 < len(answer) <= LONGEST for answer in answers)


def write_data(folder: Path) -> None:
    """The same for every seed."""
    dialogues = read_dialogues()
    held_out, judged_pairs, rest = (
        dialogues[:HELD_OUT],
        dialogues[HELD_OUT:][:JUDGED],
        dialogues[HELD_OUT + JUDGED :],
    )
    write(folder / "heldout.jsonl", [{"prompt": pair["prompt"][:1]} for pair in held_out])
    write(folder / "prompts.jsonl", [{"prompt": pair["prompt"][:1]} for pair in rest[:ASKED]])
    write(folder / "heldout_pairs.jsonl", filter(short, held_out))
    write(folder / "pairs.jsonl", filter(short, rest))
    (folder / "judge.json").write_text(json.dumps(word_weights(judged_pairs)), encoding="utf-8")
    write(folder / "replay.jsonl", replay_pairs(folder / "prompts.jsonl"))


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


# --- replay -----------------------------------------------------------------------------------------------------------


def replay_pairs(asked: Path) -> list[dict[str, Any]]:
    """To short English prompts of UltraFeedback, none of which is asked when forgetting is measured, the model's own
    answer is chosen. Rejected is a refusal, which it gave to one of the questions in `asked`, or what it answered to
    another of the prompts, in turn. As token ids, so that an answer that was cut has no end."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = dict.fromkeys(str(row.values["prompt"]) for row in read_rows(str(ULTRAFEEDBACK)))
    prompts = [text for text in texts if len(text) < 150 and text.isascii()][:REPLAYED]
    questions = [json.loads(line)["prompt"] for line in asked.read_text(encoding="utf-8").splitlines()]
    refusals = [answer for answer in own(questions) if "sorry" in answer.text]
    answers, pairs = own(prompts), []
    for n, (text, chosen) in enumerate(zip(prompts, answers, strict=True)):
        rejected = refusals[n // 2 % len(refusals)] if n % 2 else answers[(n + 1) % len(answers)]
        prompt = [{"role": "user", "content": text}]
        ids = {
            "prompt_ids": list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)),
            "chosen_ids": list(chosen.ids),
            "rejected_ids": list(rejected.ids),
        }
        if "sorry" not in chosen.text and chosen.text != rejected.text:
            pairs.append({"prompt": prompt, "chosen": chosen.text, "rejected": rejected.text, **ids})
    return pairs


def own(prompts: Sequence[Any]) -> list[Any]:
    """Greedy answers of the pretrained model."""
    rows = [{"prompt": prompt} for prompt in prompts]
    found = pt.evaluate(MODEL, rows, lambda completion: 1.0, k=0, max_completion_length=ANSWER, max_prompts=len(rows))
    return [record.greedy for record in found.records]


# --- the independent judge: words alone -------------------------------------------------------------------------------


def words(text: str) -> set[str]:
    """Words and pairs of neighbours."""
    found = re.findall(r"[a-z']+|[?!.]", text.lower().replace("’", "'"))
    return {*found, *(f"{a} {b}" for a, b in pairwise(found))}


def features(text: str, known: Mapping[str, Any]) -> dict[str, float]:
    """Of length 1, so that a longer answer has no larger score."""
    found = sorted(words(text) & known.keys())
    return {word: len(found) ** -0.5 for word in found}


def word_weights(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Logistic regression: in which words does the preferred answer differ from the other one, at the same length?

    People preferred the shorter answer of most pairs. The logarithm of the length is therefore part of the regression,
    and no part of the judge: words that stand for a short answer alone get no weight.
    """
    import torch

    sides = [[pair[side][0]["content"] for side in ("chosen", "rejected")] for pair in pairs]
    counts = Counter(word for side in sides for answer in side for word in words(answer))
    known = {word: n for n, word in enumerate(sorted(word for word, count in counts.items() if count >= 3))}
    differences = torch.zeros(len(sides), len(known) + 1, dtype=torch.float64)
    for n, side in enumerate(sides):
        for answer, sign in zip(side, (1.0, -1.0), strict=True):
            differences[n, -1] += sign * math.log(1 + len(answer.split()))
            for word, value in features(answer, known).items():
                differences[n, known[word]] += sign * value
    weights = torch.zeros(len(known) + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.softplus(-differences @ weights).sum() + 1.5 * weights[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    judge = {"words": dict(zip(known, weights[:-1].tolist(), strict=True)), "mean": 0.0, "std": 1.0}
    scores = [judged(answer, judge) for side in sides for answer in side]
    return judge | {"mean": statistics.fmean(scores), "std": statistics.pstdev(scores)}


def judged(answer: str, judge: Mapping[str, Any]) -> float:
    """In standard deviations of the answers that people compared; 0 is a typical one."""
    score = sum(judge["words"][word] * value for word, value in features(answer, judge["words"]).items())
    return (score - judge["mean"]) / judge["std"]


def preferred(completion: Any, judge: str) -> float:
    """The check: does the answer use the words of answers that people prefer?"""
    return judged(completion if isinstance(completion, str) else completion[-1]["content"], read_judge(judge))


@cache
def read_judge(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_text(encoding="utf-8"))


# --- the runs ---------------------------------------------------------------------------------------------------------


def reward_model(data: Path) -> dict[str, Any]:
    return {
        "model": {"path": MODEL, "device": "cpu"},
        "algorithm": {"name": "reward_model", "center_coef": 0.01},
        "data": {"train": str(data / "pairs.jsonl"), "eval": str(data / "heldout_pairs.jsonl")},
        "evaluation": {"prompts": HELD_OUT},
        "checkpoint": {"every": 0},
        "train": {
            "steps": 80,
            "prompts_per_step": 16,
            "learning_rate": 2e-5,
            "schedule": "linear",
            "warmup_steps": 8,
        },
    }


def config(data: Path, learned: Path) -> dict[str, Any]:
    judge = {"function": f"{Path(__file__).resolve()}:preferred", "settings": {"judge": str(data / "judge.json")}}
    return {
        "model": {"path": MODEL, "device": "cpu"},
        "algorithm": {"name": "rpo", "beta": 0.1, "alpha": 0.2},
        "data": {
            "train": [str(data / "prompts.jsonl"), str(data / "replay.jsonl")],
            "eval": str(data / "heldout.jsonl"),
        },
        "rewards": [
            {"model": str(learned), "settings": {"normalize": True}, "label": "learned"},
            {"name": "finished", "weight": 0.6},  # people compared answers that were whole
        ],
        "check": [judge, {"name": "repetition"}],
        "sampled_pairs": {"select": "best_worst"},
        "sampling": {"group_size": 8, "temperature": 0.7, "max_completion_length": ANSWER},
        "train": {
            "steps": 24,
            "prompts_per_step": 16,
            "learning_rate": 3.2e-6,
            "schedule": "linear",
            "warmup_steps": 3,
        },
        "evaluation": {
            "prompts": 200,
            "samples": 0,
            "max_completion_length": ANSWER,
            "other_prompts": str(OTHERS),
        },
        "checkpoint": {"every": 0},
        "guards": {"max_truncated": 1.0},
    }


def run(seed: int, output: Path) -> Any:
    """Write the data and train the reward model beside the runs, once for all seeds; then train."""
    data = output.parent / "preferred-data"
    if not (data / "replay.jsonl").exists():
        data.mkdir(parents=True, exist_ok=True)
        write_data(data)
    learned = data / "reward-model"
    if not learned.exists():
        pt.train(reward_model(data), seed=0, output=str(learned))
    return pt.train(config(data, learned), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/preferred"))
    asked = parser.parse_args()
    run(asked.seed, asked.output)
