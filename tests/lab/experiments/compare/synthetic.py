"""Run folders of a comparison as real runs would leave them, with scores of our choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.functional.intervals import wilson
from posttrain.lab.experiments.compare.api import DESIGN, Comparison, conclude
from posttrain.lab.experiments.compare.work import run_folder

BASE: dict[str, Any] = {
    "model": {"path": "tiny:sort"},
    "algorithm": "grpo",
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "train": {"steps": 4},
    "evaluation": {"every": 2},
}
PROMPTS = 100
LOST = {"type": "GuardStop", "message": "step 3: no two answers differ\n  Look at the reward.", "exit_code": 4}


def compared(
    folder: Path, scores: Mapping[str, Sequence[float | None]], *, before: float = 0.2, **given: Any
) -> Comparison:
    """Write and conclude arms with the given held-out share per seed. None: a guard stopped the run."""
    first, *_ = scores.values()
    design = {
        "base": BASE,
        "arms": {arm: {"train.learning_rate": 1e-6 * (n + 1)} for n, arm in enumerate(scores)},
        "seeds": len(first),
        "budget": {"steps": 4},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESIGN).write_text(json.dumps(design | given))
    for arm, shares in scores.items():
        for seed, share in enumerate(shares):
            write_run(run_folder(folder, arm, seed), seed, share, before=before)
    return conclude(folder)


def write_run(
    folder: Path, seed: int, share: float | None, *, before: float = 0.2, middle: float | None = None
) -> None:
    """Write a run folder. `middle` is the score half-way, by default the mean of start and end."""
    (folder / "evaluations").mkdir(parents=True)
    (folder / "config.yaml").write_text("train: {steps: 4}\n")
    end = before if share is None else share
    curve = [(0, before), (2, (before + end) / 2 if middle is None else middle), (4, end)]
    steps = range(1, 3 if share is None else 5)
    rows = [
        {
            "step": step,
            "num_tokens": 1000 * step,
            "time/step": 0.5,
            "time/train": 0.25,
            "memory/peak_rss_gb": 1.0,
            "entropy": 1.0 / step,
            "grad_norm": 1.0,
            "policy/approx_kl_k3": 0.01 * step,
        }
        for step in steps
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events: list[dict[str, Any]] = [
        {"kind": "evaluation", "step": step, "evaluation": evaluation(score)}
        for step, score in curve
        if step == 0 or share is not None
    ]
    found = {"baseline": evaluation(before)}
    if share is None:
        (folder / "error.json").write_text(json.dumps(LOST))
        events.append({"kind": "error", "message": "GuardStop"})
    else:
        events.append({"kind": "end", "step": 4})
        found["trained"] = evaluation(end)
        write_answers(folder / "evaluations" / "trained.jsonl", seed, end)
    write_answers(folder / "evaluations" / "baseline.jsonl", 0, before)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "evaluation.json").write_text(json.dumps(found))


def evaluation(share: float) -> dict[str, Any]:
    interval = wilson(round(share * PROMPTS), PROMPTS)._asdict()
    greedy = {"accuracy": interval, "score": interval}
    return {"greedy": greedy, "score_range": [0.0, 1.0], "check": {"right": interval}}


def write_answers(path: Path, seed: int, share: float) -> None:
    """Write the same prompts for every seed. The right ones differ slightly between seeds."""
    right = {(place * 37 + seed) % PROMPTS for place in range(round(share * PROMPTS))}
    scores = [float(e in right) for e in range(PROMPTS)]
    lines = [
        {
            "index": e,
            "prompt": f"prompt {e}",
            "greedy": {"text": str(e in right), "score": score, "check": {"right": score}},
        }
        for e, score in enumerate(scores)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
