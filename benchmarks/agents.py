"""Small models that learn to act in several turns, on a CPU: each recipe on several seeds, measured from its run files.

    python -m benchmarks.agents                                every recipe, seeds 0, 1 and 2
    python -m benchmarks.agents guess_a_number --seeds 3       one recipe, one more seed
    python -m benchmarks.agents --page                         write the table again, from the figures on file

The recipes are in recipes/NAME/, the figures in benchmarks/results/agents.json and the table in docs/environments.md.
The seed determines the initial weights and demonstrations of the model as well as the run. The scores before and after
are measured on held-out prompts, each answered four times at temperature 1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from benchmarks.asynchrony.tables import table, with_tables
from benchmarks.seeds import asked_for, with_run
from benchmarks.speed.machine import origin

import posttrain as pt

HERE = Path(__file__).parent
RESULT = HERE / "results" / "agents.json"
RECIPES = HERE.parent / "recipes"
PAGE = HERE.parent / "docs" / "environments.md"
SIDES = ("baseline", "trained")


def measure(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one recipe on one seed: make the model, train it, and collect the figures."""
    recipe, began, cpu, load = recipe_of(name), time.perf_counter(), cpu_seconds(), os.getloadavg()[0]
    recipe.make(folder, seed=seed)
    config = yaml.safe_load((RECIPES / name / "config.yaml").read_text())
    config |= {"output": str(folder / "run"), "seed": seed}
    config["model"]["path"] = str(folder / "model")
    config["data"] = {split: str(folder / Path(path).name) for split, path in config["data"].items()}
    run = pt.train(config)
    call = getattr(recipe, "CALL", None)
    return {
        "seed": seed,
        "best": recipe.best_score(),
        **{side: of_side(run, side, None if call is None else recipe.WORDS.index(call)) for side in SIDES},
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
        "load": round(load, 1),
        "origin": origin(),
    }


def of_side(run: pt.Run, side: str, call: int | None) -> dict[str, Any]:
    """The scores of sampled and of greedy answers, the mean of each reward over the greedy answers, and the share of
    sampled answers that contain the token of a call."""
    found = run.evaluation[side]
    lines = (Path(run.folder) / "evaluations" / f"{side}.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [sample["ids"] for line in lines for sample in json.loads(line)["samples"]]
    called = None if call is None else sum(call in ids for ids in answers) / len(answers)
    rewards = {name: one["mean"] for name, one in found["rewards"].items()}
    return {
        "sampled": found["sampled"]["score"],
        "greedy": found["greedy"]["score"],
        "rewards": rewards,
        "called": called,
    }


def recipe_of(name: str) -> ModuleType:
    """The module recipes/NAME/start.py. It has `make` and `best_score`, and with tools also `CALL`, one of `WORDS`."""
    spec = importlib.util.spec_from_file_location(f"{name}_start", RECIPES / name / "start.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def cpu_seconds() -> float:
    """CPU seconds of this process and of the child processes that it has waited for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = ("recipe", "seed", "score before", "after", "best possible", "answers with a call", "CPU minutes")


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    before, after = (found[side] for side in SIDES)
    scores = [
        f"{one['mean']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in (before["sampled"], after["sampled"])
    ]
    called = "" if after["called"] is None else f"{before['called']:.0%} → {after['called']:.0%}"
    return [name, str(found["seed"]), *scores, f"{found['best']:.2f}", called, f"{found['cpu_seconds'] / 60:.1f}"]


def write_page(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the table between its marks on the page."""
    rows = [row(f"`{name}`", found) for name, runs in results.items() for found in runs]
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), {"agents": table(HEAD, rows)}), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    known = sorted(path.parent.name for path in RECIPES.glob("*/start.py"))
    recipes, seeds = asked_for(arguments, __doc__, known)
    results = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for name in recipes:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(name, seed, Path(folder))
            results[name] = with_run(results.get(name, []), found)
            RESULT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(" | ".join(row(name, found)), flush=True)
    write_page(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
