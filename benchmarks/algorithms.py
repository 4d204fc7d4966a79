"""Every policy-gradient algorithm on the demonstration task, with the same rollout budget.

    python benchmarks/algorithms.py                    all of them, about twenty minutes on two cores
    python benchmarks/algorithms.py grpo ppo           only these again; the others stay as they are on file

Each run has its own process with one thread, so that its peak memory can be measured; two run at a time. The table is
in docs/comparison.md and its numbers are in benchmarks/results/algorithms.json. RECIPES has all differences between the
runs; every other setting is the algorithm's default.
"""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE / "results" / "algorithms.json"
PAGE = HERE.parent / "docs" / "comparison.md"
STEPS, EVERY, TARGET = 200, 10, 0.8
SEEDS_OF_A_PAGE, SEEDS_OF_THE_REST = (0, 1, 2), (0,)

BASE: dict[str, Any] = {
    "model": {"path": "tiny:sort", "device": "cpu"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 8, "max_completion_length": 8, "max_batch_rows": 512},
    "train": {
        "steps": STEPS,
        "prompts_per_step": 64,
        "learning_rate": 5e-4,
        "schedule": "linear",
        "warmup_steps": 10,
        "minibatches": 2,
        "tokens_per_microbatch": 8192,
    },
    "evaluation": {"prompts": 256, "samples": 0, "every": EVERY},
    "checkpoint": {"every": 0},
    "guards": {"no_signal_steps": STEPS},
    "report": False,
}
"""200 steps x 64 prompts x 8 completions of at most 8 tokens. Two updates for each batch, so that ratios matter."""


@dataclass(frozen=True)
class Recipe:
    """One line of the table."""

    algorithm: Mapping[str, Any]
    page: bool = False
    """Whether the algorithm is one of the best known. It then has three seeds."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Settings in addition to BASE."""
    note: str = ""
    """The settings that are not defaults, with the reason."""


ON_POLICY = {"train.minibatches": 1}
NO_RATIO = "one update per batch, because it has no ratio that could correct a second update"
REFILLED = {"train.prompts_per_step": 28, "train.max_sampling_rounds": 100}
REFILL_NOTE = (
    "groups without signal are replaced. A step trains on 28 groups and samples about 64 groups, as many as the others"
)
STALE = {"train.publish_every": 4}
STALE_NOTE = "the sampler gets new weights only every fourth step"
RECIPES: dict[str, Recipe] = {
    "reinforce": Recipe({"name": "reinforce"}, page=True, given=ON_POLICY, note=NO_RATIO),
    "remax": Recipe({"name": "remax"}, page=True, given=ON_POLICY, note=NO_RATIO),
    "rloo": Recipe({"name": "rloo"}, page=True, given=ON_POLICY, note=NO_RATIO),
    "reinforce_plus_plus": Recipe({"name": "reinforce_plus_plus"}, page=True),
    "reinforce_plus_plus_baseline": Recipe({"name": "reinforce_plus_plus_baseline"}),
    "ppo": Recipe({"name": "ppo"}, page=True),
    "grpo": Recipe({"name": "grpo"}, page=True),
    "dr_grpo": Recipe({"name": "dr_grpo"}, page=True),
    "lite_ppo": Recipe({"name": "lite_ppo"}),
    "gdpo": Recipe({"name": "gdpo"}),
    "dapo": Recipe({"name": "dapo"}, page=True, given=REFILLED, note=REFILL_NOTE),
    "deepseek_v32": Recipe({"name": "deepseek_v32"}),
    "gspo": Recipe({"name": "gspo"}, page=True),
    "gspo_token": Recipe({"name": "gspo_token"}),
    "luspo": Recipe({"name": "luspo"}),
    "gmpo": Recipe({"name": "gmpo"}),
    "cispo": Recipe({"name": "cispo"}, page=True),
    "sapo": Recipe({"name": "sapo"}),
    "vespo": Recipe({"name": "vespo"}),
    "clip_cov": Recipe({"name": "clip_cov"}, given=REFILLED, note=REFILL_NOTE),
    "kl_cov": Recipe({"name": "kl_cov"}, given=REFILLED, note=REFILL_NOTE),
    "dppo": Recipe({"name": "dppo"}),
    "opo": Recipe({"name": "opo"}, given=ON_POLICY, note="one update per batch: it is exactly on-policy by definition"),
    "gpg": Recipe({"name": "gpg"}, given=ON_POLICY, note=NO_RATIO),
    "topr": Recipe({"name": "topr"}),
    "kimi_k15": Recipe({"name": "kimi_k15"}),
    "kimi_k2": Recipe({"name": "kimi_k2"}, page=True),
    "pass_at_k": Recipe({"name": "pass_at_k"}),
    "maxrl": Recipe({"name": "maxrl"}),
    "dro": Recipe({"name": "dro"}),
    "grpo_passk": Recipe({"name": "grpo_passk"}),
    "policy_gradient": Recipe(
        {"name": "policy_gradient"}, given=ON_POLICY, note="GRPO's composition, the default, with one update per batch"
    ),
    "distillation": Recipe(
        {"name": "distillation"},
        given={"rewards": [], "check": [{"name": "exact_match"}], **ON_POLICY},
        note="training has no reward. The teacher is the model that `grpo` trained with seed 0",
    ),
    "online_dpo": Recipe(
        {"name": "online_dpo", "pairs": "all"},
        given=ON_POLICY,
        note="two answers of a group with different rewards form a pair, and all such pairs are used. One update per "
        "batch",
    ),
    "decoupled PPO": Recipe({"name": "grpo", "correction": "decoupled"}, page=True, given=STALE, note=STALE_NOTE),
    "stale, uncorrected": Recipe({"name": "grpo", "correction": "none"}, given=STALE, note=STALE_NOTE),
}


# --- one run, in its own process --------------------------------------------------------------------------------------


def measure(name: str, seed: int, folder: Path, teacher: str | None) -> dict[str, Any]:
    """Train one recipe, and read the figures of the table from its run folder."""
    from posttrain.train.api import train

    recipe = RECIPES[name]
    given: dict[str, Any] = dict(recipe.given) | ({"teacher": teacher} if teacher else {})
    run = train({**BASE, "algorithm": dict(recipe.algorithm), "output": str(folder), "seed": seed}, **given)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(u.ru_utime + u.ru_stime for u in used)
    records = run.metrics
    curve = held_out_curve(run.folder)
    tokens_at = {int(record["step"]): int(record["num_tokens"]) for record in records}
    reached = next((step for step, score in curve if score >= TARGET), None)
    greedy = {which: run.evaluation[which]["greedy"]["accuracy"] for which in ("baseline", "trained")}
    clipped = [record["clip_ratio/region_mean"] for record in records if "clip_ratio/region_mean" in record]
    return {
        "name": name,
        "seed": seed,
        "baseline": greedy["baseline"],
        "trained": greedy["trained"],
        "date": f"{date.today()}",
        "tokens_to_target": None if reached is None else tokens_at[reached],
        "tokens": int(records[-1]["num_tokens"]),
        "completions": STEPS * 64 * 8,
        "seconds": seconds,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "largest_kl": largest_kl(run.folder, seed),
        "clip_fraction": mean(clipped) if clipped else None,
        "models": models_of(run),
        "curve": curve,
        "model_path": str(run.model_path),
    }


def models_of(run: Any) -> str:
    """The models that this run held in memory, according to the needs of the algorithm with its settings."""
    needs = run.trainer.algorithm.needs
    held = ["policy"]
    held += ["critic"] if "values" in needs else []
    held += ["reference"] if "reference" in needs else []
    held += ["teacher"] if "teacher" in needs else []
    return ", ".join(held)


def held_out_curve(folder: Path) -> list[tuple[int, float]]:
    """(step, greedy accuracy) of every evaluation during and after the run."""
    points = []
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "evaluation" and event["message"] != "baseline":
            points.append((int(event["step"]), float(event["evaluation"]["greedy"]["accuracy"]["mean"])))
    return points


def largest_kl(folder: Path, seed: int) -> float:
    """The largest KL, in nats per completion: of every tenth step, the mean of log(policy / starting model) over its
    completions.

    It is computed from the recorded rollouts and the starting model. So it costs the run nothing, and it is the same
    measure for algorithms with and without a reference model.
    """
    import torch

    from posttrain.config import ModelConfig
    from posttrain.data.collate import collate
    from posttrain.models.forward import token_logprobs
    from posttrain.models.load import load_model
    from posttrain.models.named import resolve_model_path
    from posttrain.report.store import read_rollouts

    start = load_model(resolve_model_path(ModelConfig(path="tiny:sort", device="cpu"), seed))
    largest = 0.0
    for step in range(EVERY, STEPS + 1, EVERY):
        rows = read_rollouts(folder, step)
        if not rows:
            continue
        prompts = start.tokenizer([row["prompt"] for row in rows]).input_ids
        answers = [row["completion_ids"] for row in rows]
        tokens, mask_BT = collate(list(zip(prompts, answers, strict=True)), start.pad_id)
        with torch.no_grad():
            start_B = token_logprobs(start.model, tokens, mask_BT, temperature=1.0).logprobs_BT.sum(dim=-1)
        kl = mean(sum(r["logprobs"]) for r in rows) - float(start_B.mean())
        largest = max(largest, kl)
    return largest


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(names: Sequence[str]) -> list[dict[str, Any]]:
    """Do all runs in two processes at a time, with one thread each. Failed runs are reported; the others continue."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        jobs = [
            (name, seed) for name in names for seed in (SEEDS_OF_A_PAGE if RECIPES[name].page else SEEDS_OF_THE_REST)
        ]
        needing_teacher = [job for job in jobs if job[0] == "distillation"]
        with ThreadPoolExecutor(max_workers=2) as pool:
            first = [job for job in jobs if job not in needing_teacher]
            if needing_teacher and "grpo" not in names:
                first.append(("grpo", 0))
            results += [r for r in pool.map(lambda job: in_process(*job, Path(work), None), first) if r]
            taught = next((r["model_path"] for r in results if r["name"] == "grpo"), None)
            results += [r for r in pool.map(lambda job: in_process(*job, Path(work), taught), needing_teacher) if r]
    return results


def in_process(name: str, seed: int, work: Path, teacher: str | None) -> dict[str, Any] | None:
    out = work / f"{name}-{seed}.json"
    command = [sys.executable, __file__, "--one", name, str(seed), str(work / f"{name}-{seed}"), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *([teacher] if teacher else [])], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(f"{name} seed {seed}: exit code {done.returncode}\n{done.stderr[-2000:]}", flush=True)
        return None
    result = json.loads(out.read_text())
    print(f"{name} seed {seed}: {result['trained']['mean']:.3f} in {result['seconds']:.0f} s", flush=True)
    return result


# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = """<!-- written by: python benchmarks/algorithms.py -->

# The algorithms compared on one task

    python benchmarks/algorithms.py

The command trains every algorithm on the demonstration task: sort the letters of a word, with reward 1 for the exact
answer and 0 otherwise. All algorithms have the same tiny model and the same rollout budget: {steps} steps x 64 prompts
x 8 completions = {completions:,} completions. The learning rate is 5e-4, and each batch gets two updates unless a note
below the table says otherwise. All other settings are the algorithm's defaults. A score is the greedy accuracy on 256
held-out words with its 95% interval. If there are three seeds, the table shows the median run and lists the scores of
all three.

The table compares *settings on one small task*. It shows that each algorithm learns, what it costs and how far it
moves from the starting model. It does not rank algorithms for your task: most lines differ by less than the seeds of
one line.

"""


COLUMNS = (
    "algorithm", "held-out score", "seeds", "tokens sampled", "tokens to 0.8", "CPU seconds", "peak memory", "models",
    "largest KL", "clip fraction",
)  # fmt: skip

FOOT = """- **Baselines** of the starting models, one per seed: {baselines}.
- **Tokens** count prompts and completions. *Tokens to 0.8* counts until the first evaluation with a score of at least
  0.8. There is an evaluation every tenth step. If not all seeds reach it, the cell says how many do.
- **Dates**: put on file on {dates}.
- **CPU seconds** include evaluations and the processes that compute rewards. A run has one thread. Compare them only
  between rows of one date: the machine was not equally fast on each.
- **Peak memory** is the resident memory of the whole process. Python and the libraries take about 500 MB of it.
- **KL** is the mean over completions of log(policy / starting model), in nats per completion. It is computed at every
  tenth step, and the table shows the largest value.
- **Clip fraction** is the clipped share of tokens, or of completions if a ratio belongs to a whole completion. It is
  the mean over all steps.

Notes:"""


def write_page(results: Sequence[Mapping[str, Any]]) -> None:
    lines = [HEAD.format(steps=STEPS, completions=STEPS * 64 * 8)]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    notes = []
    for name, recipe in RECIPES.items():
        runs = sorted((r for r in results if r["name"] == name), key=lambda r: r["trained"]["mean"])
        if not runs:
            notes.append(f"- **{name}**: no run finished.")
            continue
        lines.append(table_line(name, runs))
        if any(r["trained"]["low"] <= r["baseline"]["high"] for r in runs):
            notes.append(f"- **{name}** does not end significantly above its baseline with every seed.")
        if recipe.note:
            notes.append(f"- **{name}**: {recipe.note}.")
    baselines = sorted({round(r["baseline"]["mean"], 3) for r in results})
    lines += [
        "",
        FOOT.format(baselines=", ".join(map(str, baselines)), dates=dates(results)),
        "",
        *notes,
        "",
    ]
    PAGE.write_text("\n".join(lines))


def table_line(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    shown = runs[len(runs) // 2]
    score = shown["trained"]
    clip = shown["clip_fraction"]
    cells = [
        f"`{name}`",
        f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]",
        ", ".join(f"{r['trained']['mean']:.3f}" for r in sorted(runs, key=lambda r: r["seed"])),
        f"{median(r['tokens'] for r in runs) / 1e6:.2f} M",
        tokens_to_target([r["tokens_to_target"] for r in runs]),
        f"{median(r['seconds'] for r in runs):.0f}",
        f"{median(r['peak_rss_mb'] for r in runs):.0f} MB",
        shown["models"],
        f"{max(r['largest_kl'] for r in runs):.1f}",
        "none" if clip is None or math.isnan(clip) else f"{clip:.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


def tokens_to_target(tokens: Sequence[float | None]) -> str:
    """The median over seeds, if each of them reached the target.

    >>> tokens_to_target([1.1e6, None, None])
    '1 of 3 seeds'
    """
    reached = [t for t in tokens if t is not None]
    if not reached:
        return "not reached"
    return f"{median(reached) / 1e6:.2f} M" if len(reached) == len(tokens) else f"{len(reached)} of {len(tokens)} seeds"


def dates(results: Sequence[Mapping[str, Any]]) -> str:
    """The date of most rows, then the rows of other dates."""
    of = {r["name"]: r["date"] for r in sorted(results, key=lambda r: r["date"])}
    usual = Counter(of.values()).most_common(1)[0][0]
    later = {day: ", ".join(f"`{name}`" for name in of if of[name] == day) for day in of.values() if day != usual}
    return "; ".join([usual, *(f"{names} on {day}" for day, names in later.items())])


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--one"]:
        name, seed, folder, out, *teacher = arguments[1:]
        Path(out).write_text(json.dumps(measure(name, int(seed), Path(folder), teacher[0] if teacher else None)))
        return 0
    if arguments[:1] == ["--page"]:
        write_page(json.loads(RESULT.read_text())["runs"])
        return 0
    names = list(arguments) or list(RECIPES)
    known = json.loads(RESULT.read_text())["runs"] if RESULT.exists() and arguments else []
    fresh = run_all(names)
    done = {(r["name"], r["seed"]) for r in fresh}
    runs = [r for r in known if (r["name"], r["seed"]) not in done and r["name"] in RECIPES] + fresh
    runs = [{key: value for key, value in r.items() if key != "model_path"} for r in runs]
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    RESULT.write_text(json.dumps({"machine": machine, "base": BASE, "runs": runs}, indent=1) + "\n")
    write_page(runs)
    return 0 if len(done) == sum(3 if RECIPES[n].page else 1 for n in names) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
