"""Preference losses and a reward model on real data, with a real small model: held-out pairs before and after.

    python benchmarks/real_preferences.py                        every run that is not on file yet
    python benchmarks/real_preferences.py ultrafeedback/dpo      only this one again

Data and model are in ../shared/data: minimind2-small (25.8 million parameters, a chat model) on UltraFeedback, on
HH-RLHF (harmless) and on the thumbs up and down of LLaMA-Factory's KTO set. Nothing is tuned. Each loss has its
defaults, and all have the same learning rate except ORPO and the reward model, which learn from likelihood and from a
new head. The table is in docs/preferences-real.md and its numbers are in benchmarks/results/real_preferences.json.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.train.api import train

HERE = Path(__file__).parent
RESULT = HERE / "results" / "real_preferences.json"
PAGE = HERE.parent / "docs" / "preferences-real.md"
SHARED = HERE.parent.parent / "shared" / "data"
MODEL = SHARED / "models" / "minimind2-small"

DATA: dict[str, dict[str, Any]] = {
    "ultrafeedback": {
        "data.train": str(SHARED / "preference" / "ultrafeedback_train.jsonl.gz"),
        "data.eval": str(SHARED / "preference" / "ultrafeedback_eval.jsonl.gz"),
        "train.steps": 16,
    },
    "hh": {
        "data.train": str(SHARED / "preference" / "hh_rlhf_harmless_base_test.jsonl.gz"),
        "data.eval_fraction": 0.2,
        "train.steps": 24,
    },
    "kto_en": {
        "data.train": str(SHARED / "preference" / "llamafactory_kto_en_demo.jsonl.gz"),
        "data.eval_fraction": 0.4,
        "train.steps": 10,
    },
}
"""Short runs: 128 pairs, 192 pairs and 160 answers. Each answer has at most 448 tokens including its prompt."""
PAIR_LOSSES = ("dpo", "ipo", "kto", "simpo", "orpo", "reward_model")
RUNS = [*(f"{data}/{name}" for data in ("ultrafeedback", "hh") for name in PAIR_LOSSES), "kto_en/kto", "kto_en/bco"]
BASE: dict[str, Any] = {
    "model": {"path": str(MODEL), "device": "cpu", "precision": "bfloat16"},
    "data": {"max_length": 448, "max_dropped": 0.9},
    "train": {
        "prompts_per_step": 8,
        "learning_rate": 1e-5,
        "schedule": "linear",
        "warmup_steps": 2,
        "tokens_per_microbatch": 4096,
    },
    "evaluation": {"prompts": 100},
    "checkpoint": {"every": 0},
    "report": False,
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Do one run, and return its own measurements."""
    data, algorithm = name.split("/")
    rows = {"train.prompts_per_step": 16} if algorithm in ("kto", "bco") else {}  # the same number of answers
    rows |= {"train.learning_rate": 5e-5} if algorithm in ("orpo", "reward_model") else {}
    started = time.perf_counter()
    run = train({**BASE, "algorithm": algorithm}, output=str(folder), **DATA[data], **rows)
    return {
        "run": name,
        "seconds": round(time.perf_counter() - started, 1),
        "evaluation": run.evaluation,
        "data": run.describe()["data"],
        "last_step": {key: value for key, value in run.metrics[-1].items() if not key.startswith(("time/", "memory/"))},
    }


# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = """# Preference losses on real data, measured

    python benchmarks/real_preferences.py

The command trains minimind2-small, a small real chat model with 25.8 million parameters, on three public preference
data sets. Runs are short: {steps}. An answer and its prompt have at most {length} tokens together. Nothing was tuned,
and intervals are wide. So the page shows what the measures tell on real data, and not which loss is best.

The benchmark needs `../shared/data`, a folder beside the checkout with the model and with parts of UltraFeedback,
HH-RLHF and LLaMA-Factory's KTO set. [The list of recipes](recipes.md#the-shared-data) names the files and their
sources.

What the table shows:

- *Ranking.* After so few updates, only KTO and ORPO on HH-RLHF rank held-out pairs better by more than chance.
- *Implicit reward.* ORPO on HH-RLHF ranks held-out pairs better than chance by its implicit reward. DPO and KTO on
  UltraFeedback almost do.
- *Displacement.* All losses except ORPO on HH-RLHF make the chosen answers less likely, too, though less so than the
  rejected ones. A run warns about this.
- *Reward models.* At this size, a reward model learns nothing from 128 or 192 pairs.

How to read the table:

- *Ranked* is the share of held-out pairs whose chosen answer has the higher summed log-probability, or for a reward
  model the higher score.
- *Implicit* is the same share by the log-ratio to the model before training. A loss with a reference model trains this
  measure.
- *Margin* is the mean difference of these log-ratios in nats, or for a reward model the mean difference of the scores.
- *Chosen* and *rejected* are the mean changes of the summed log-probability, in nats per answer.
- Brackets hold 95% intervals. A difference whose interval contains 0 shows nothing.

"""
COLUMNS = ("run", "ranked, before", "after", "difference", "implicit", "margin", "chosen", "rejected", "seconds")


def write_page(results: Mapping[str, Mapping[str, Any]]) -> None:
    steps = ", ".join(f"{name} {settings['train.steps']} steps" for name, settings in DATA.items())
    lines = [HEAD.format(steps=steps, length=BASE["data"]["max_length"])]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [pair_line(run) for run in results.values() if "accuracy" in run["evaluation"]["trained"]]
    labelled = [run for run in results.values() if "auc" in run["evaluation"]["trained"]]
    if labelled:
        lines += [
            "",
            "For data with thumbs up and down, the AUC is the probability that a good answer ranks above a bad one.",
            "",
        ]
        lines += ["| run | AUC by log-probability, before | AUC by log-ratio, after | seconds |", "|---|---|---|---|"]
        lines += [label_line(run) for run in labelled]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


def pair_line(run: Mapping[str, Any]) -> str:
    before, after = run["evaluation"]["baseline"], run["evaluation"]["trained"]
    change, implicit = run["evaluation"]["difference"], after.get("implicit", {})
    cells = [
        f"`{run['run']}`",
        share(before["accuracy"]),
        share(after["accuracy"]),
        f"{100 * change['accuracy']['mean']:+.0f} [{100 * change['accuracy']['low']:+.0f}, "
        f"{100 * change['accuracy']['high']:+.0f}]",
        share(implicit["accuracy"]) if implicit else "",
        number(implicit["margin"] if implicit else after["margin"]),
        number(change["logps_chosen"]) if implicit else "",
        number(change["logps_rejected"]) if implicit else "",
        f"{run['seconds']:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def label_line(run: Mapping[str, Any]) -> str:
    before, after = run["evaluation"]["baseline"], run["evaluation"]["trained"]
    return f"| `{run['run']}` | {share(before['auc'])} | {share(after['implicit']['auc'])} | {run['seconds']:.0f} |"


def share(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.0%} [{found['low']:.0%}, {found['high']:.0%}]"


def number(found: Mapping[str, float]) -> str:
    return f"{found['mean']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}]"


def main(arguments: Sequence[str]) -> int:
    if not MODEL.is_dir():
        print(f"{MODEL} does not exist: this benchmark needs the shared data", file=sys.stderr)
        return 2
    known = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    results: dict[str, Mapping[str, Any]] = {run["run"]: run for run in known}
    for name in arguments or [name for name in RUNS if name not in results]:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, Path(folder) / "run")
        print(name, results[name]["seconds"], json.dumps(results[name]["evaluation"])[:400], flush=True)
        runs = [results[name] for name in RUNS if name in results]
        machine = f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
        base = BASE | {"model": MODEL.name}
        RESULT.write_text(json.dumps({"machine": machine, "base": base, "runs": runs}, indent=1) + "\n")
        write_page({name: results[name] for name in RUNS if name in results})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
