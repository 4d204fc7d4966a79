"""A run folder with all files of a real one, in the real formats: deterministic, and written in milliseconds."""

from __future__ import annotations

import json
import math
import random
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from posttrain.functional.intervals import Interval, mean_interval, wilson

CONFIG = """\
# All settings of this run, each with where its value came from.
model:
  path: tiny:addition  # file: demo.yaml
  precision: auto  # default
algorithm:
  name: grpo  # file: demo.yaml
  clip_low: 0.2  # default
  clip_high: 0.28  # command line
data:
  train: task:addition  # file: demo.yaml
  prompt: null  # default
rewards:
- name: numeric  # file: demo.yaml
  weight: 1.0  # default
check:
- name: exact_match  # file: demo.yaml
sampling:
  group_size: 8  # default
  max_completion_length: 24  # file: demo.yaml
train:
  steps: 60  # file: demo.yaml
  prompts_per_step: 8  # file: demo.yaml
  learning_rate: 1.0e-03  # command line
  max_grad_norm: 1.0  # default
seed: 0  # default
"""


@cache
def tokenizer() -> Tokenizer:
    """A tokenizer with one token per byte, so a character beyond ASCII has several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def as_json(interval: Interval) -> dict[str, Any]:
    return interval._asdict()


def evaluation(accuracy: float, *, prompts: int = 128, check: float | None = None) -> dict[str, Any]:
    """Return the output of `Evaluation.to_json` for a model with about this accuracy."""

    def answered(share: float) -> dict[str, Any]:
        return as_json(wilson(round(share * prompts), prompts))

    def averaged(share: float) -> dict[str, Any]:
        right = round(share * prompts)
        return as_json(mean_interval([1.0] * right + [0.0] * (prompts - right), bounds=(0, 1)))

    at_k = {str(k): averaged(1 - (1 - accuracy) ** (k**0.7)) for k in (1, 2, 4)}
    votes = {str(k): averaged(min(1.0, accuracy * (1 + 0.05 * math.log2(k)))) for k in (1, 2, 4)}
    return {
        "prompts": prompts,
        "samples": 4,
        "confidence": 0.95,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_completion_length": 24,
        "seed": 0,
        "greedy": {"score": answered(accuracy), "accuracy": answered(accuracy)},
        "sampled": {
            "pass@1": at_k["1"],
            "pass@k": at_k,
            "majority@k": votes,
            "score": at_k["1"],
            "mean_length": 6.2,
            "truncated": 0.01,
        },
        "mean_length": 6.1,
        "truncated": 0.0,
        "rewards": {"numeric": answered(accuracy)},
        "check": {} if check is None else {"exact_match": answered(check)},
        "unscored": 0,
        "score_range": [0.0, 1.0],
        "errors": [],
    }


def metrics_row(step: int, steps: int, rng: random.Random) -> dict[str, Any]:
    """Return one line of metrics.jsonl of a run that learns."""
    progress = 1 / (1 + math.exp(-9 * (step / steps - 0.4)))
    reward = min(1.0, max(0.0, 0.2 + 0.74 * progress + rng.gauss(0, 0.05)))
    length = 7.5 - 1.5 * progress + rng.gauss(0, 0.2)
    sample, train = 0.42 + 0.05 * rng.random(), 0.21 + 0.03 * rng.random()
    return {
        "step": step,
        "reward": reward,
        "reward_std": math.sqrt(reward * (1 - reward)),
        "rewards/numeric/mean": reward,
        "rewards/numeric/std": 0.4,
        "frac_reward_zero_std": min(1.0, max(0.0, 0.2 + 0.55 * progress + rng.gauss(0, 0.06))),
        "completions/mean_length": length,
        "completions/min_length": 3,
        "completions/max_length": min(24, length * 2.2),
        "completions/clipped_ratio": max(0.0, 0.09 * (1 - progress) + rng.gauss(0, 0.01)),
        "completions/mean_terminated_length": length - 0.4,
        "entropy": 1.3 - 1.0 * progress + rng.gauss(0, 0.03),
        "kl": None,
        "loss": rng.gauss(0, 0.004),
        "grad_norm": abs(0.6 - 0.3 * progress + rng.gauss(0, 0.12)),
        "learning_rate": 1e-3,
        "clip_ratio/low_mean": 0.0,
        "clip_ratio/high_mean": 0.0,
        "clip_ratio/region_mean": 0.0,
        "policy/approx_kl_k1": rng.gauss(0, 1e-7),
        "policy/approx_kl_k2": 2e-13,
        "policy/approx_kl_k3": 2e-13,
        "policy/ratio_mean": 1.0,
        "policy/ratio_min": 0.999999,
        "policy/ratio_max": 1.000001,
        "sampling/sampling_logp_difference/mean": 1.1e-7 * (1 + rng.random()),
        "sampling/sampling_logp_difference/max": 2.2e-6 * (1 + rng.random()),
        "mismatch/fresh_mean": 1.1e-7 * (1 + rng.random()),
        "mismatch/fresh_p99": 9.1e-7 * (1 + rng.random()),
        "mismatch/fresh_max": 2.2e-6 * (1 + rng.random()),
        "publish/tensors_compared": 39.0,
        "publish/probe_max_difference": 9.5e-7 * (1 + rng.random()),
        "unscored_fraction": 0.0,
        "num_tokens": step * 420,
        "time/sample": sample,
        "time/score": 0.05,
        "time/wait_for_rewards": 0.03,
        "time/train": train,
        "time/publish": 0.02,
        "time/step": sample + train + 0.07,
        "memory/rss_gb": 0.61 + 0.0002 * step,
    }


def rollout_rows(
    step: int, steps: int, rng: random.Random, *, prompts: int = 8, group_size: int = 8
) -> list[dict[str, Any]]:
    """Return answers to sums with GRPO's advantages. More of them are right in later steps."""
    rows = []
    for p in range(prompts):
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        right = [rng.random() < 0.2 + 0.7 * step / steps for _ in range(group_size)]
        mean = sum(right) / group_size
        std = math.sqrt(group_size / (group_size - 1) * mean * (1 - mean))
        for g, is_right in enumerate(right):
            text = f"{a} + {b} = {a + b if is_right else a + b + rng.choice([-10, 1, 9, 10])}" + (
                " ✓" if g == 0 else ""
            )
            advantage = (is_right - mean) / (std + 1e-6) if std else 0.0
            prompt = f"<|user|>\nWhat is {a} + {b}?\n<|assistant|>\n"
            rows.append(rollout_row(prompt, text, float(is_right), advantage, rng, step=step, group=p, row=len(rows)))
    return rows


def rollout_row(
    prompt: str,
    text: str,
    reward: float,
    advantage: float,
    rng: random.Random,
    *,
    step: int = 1,
    group: int = 0,
    row: int = 0,
) -> dict[str, Any]:
    """Return one line of a rollouts file."""
    ids = tokenizer().encode(text).ids
    return {
        "step": step,
        "prompt_index": 100 * step + group,
        "group": group,
        "row": row,
        "prompt": prompt,
        "completion": text,
        "prompt_ids": [1, 2, 3],
        "completion_ids": ids,
        "reward": reward,
        "scored": True,
        "advantage": advantage,
        "advantages": [advantage] * len(ids),
        "logprobs": [-rng.random() for _ in ids],
        "finish_reason": "eos",
        "version": step - 1,
        "reward/numeric": reward,
    }


def write_rollouts(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "rollouts" / f"step-{step:06d}.parquet")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def events(steps: int) -> list[dict[str, Any]]:
    """Return the events of the run, in the order of events.jsonl."""
    measured = [(0, 0.22), (steps // 2, 0.66)]
    told = [
        {"step": 0, "kind": "start", "message": f"tiny:addition, grpo, {steps} steps of 8 prompts with 8 answers"},
        *(
            {"step": step, "kind": "evaluation", "message": "held-out", "evaluation": evaluation(score, check=score)}
            for step, score in measured
        ),
        {"step": 7, "kind": "warning", "message": "9% of the answers were cut at 24 tokens"},
        {"step": steps, "kind": "checkpoint", "message": f"saved step {steps}"},
        {"step": steps, "kind": "end", "message": f"finished {steps} steps"},
    ]
    return [{"time": f"2026-11-20T10:0{i}:00.000+00:00", **event} for i, event in enumerate(told)]


def write_run(folder: Path, *, steps: int = 60, prompts: int = 8) -> Path:
    """Write a finished run that learned: from 22% to 95%. It has the answers to `prompts` prompts of three steps."""
    return shutil.copytree(_written(steps, prompts).name, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)


@cache
def _written(steps: int, prompts: int) -> TemporaryDirectory[str]:
    """Write such a run once, to be copied, because writing takes ten times as long as copying."""
    kept = TemporaryDirectory()
    folder, rng = Path(kept.name), random.Random(0)
    model = folder / "checkpoints" / f"step-{steps:06d}" / "model"
    model.mkdir(parents=True)
    tokenizer().save(str(model / "tokenizer.json"))
    (model.parent / "manifest.json").write_text("{}")
    (folder / "config.yaml").write_text(CONFIG)
    write_lines(folder / "metrics.jsonl", [metrics_row(step, steps, rng) for step in range(1, steps + 1)])
    write_lines(folder / "events.jsonl", events(steps))
    content = {
        "baseline": evaluation(0.22, check=0.2),
        "trained": evaluation(0.95, check=0.94),
        "difference": {"accuracy": {"mean": 0.73, "low": 0.64, "high": 0.8, "n": 128}},
        "check": {},
        "forgetting": {"baseline_loss": 3.214, "trained_loss": 3.251},
    }
    (folder / "evaluation.json").write_text(json.dumps(content))
    for step in (1, steps // 2, steps):
        write_rollouts(folder, step, rollout_rows(step, steps, rng, prompts=prompts))
    return kept
