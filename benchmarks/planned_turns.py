"""How well `posttrain plan` predicts steps of tasks with several turns. Writes the table of docs/plan.md.

    python -m benchmarks.planned_turns [--models FOLDER]      FOLDER keeps the models; existing ones are used again

The cases are the recipes with several turns, each with its start model. The second step is measured: the peak bytes of
live tensors during sampling and during training (planning/meter.py), and, in another run without the meter, the CPU
time for each thread. The plan knows the configuration and the mean length of results, which a user would provide.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from benchmarks.agents import RECIPES, recipe_of
from benchmarks.asynchrony.tables import table, with_tables

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from planning.meter import LiveBytes  # noqa: E402
from planning.run import one_step, started  # noqa: E402

from posttrain.lab.plan.api import make_plan  # noqa: E402

RESULT = HERE / "results" / "planned_turns.json"
PAGE = HERE.parent / "docs" / "plan.md"
GIVEN = {"guess_a_number": 2, "calculator": 6, "self_correction": 4}
"""Tokens between two turns: a word and a prompt sign, a product, or the output of a program."""
PHASES = ("generate", "train")


def measure(name: str, folder: Path) -> dict[str, Any]:
    """The plan of a recipe, and the measurements of one step."""
    if not (folder / "model").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        recipe_of(name).make(folder)
    config = config_of(name, folder)
    plan = make_plan(config, given_tokens=GIVEN[name])
    meter = LiveBytes()
    with meter.measuring(), a_run(config) as run:
        one_step(run, meter=None)
        with meter.span("other"):
            one_step(run, meter=meter)
    with a_run(config) as run:
        one_step(run, meter=None)
        began = time.process_time()
        one_step(run, meter=None)
        seconds = (time.process_time() - began) / torch.get_num_threads()
    peaks = meter.peaks()
    return {
        "planned": {phase: plan.memory.phase(phase).bytes for phase in PHASES},  # type: ignore[union-attr]
        "measured": {phase: peaks[phase] for phase in PHASES},
        "planned_seconds": round(plan.step_seconds, 3),
        "seconds": round(seconds, 3),
        "trajectory": plan.workload.completion_tokens,
    }


@contextmanager
def a_run(config: Mapping[str, Any]) -> Iterator[Any]:
    """A run before its first step, in a temporary folder."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as resources:
        yield started({**config, "output": f"{place}/run"}, resources)


def config_of(name: str, folder: Path) -> dict[str, Any]:
    """The config of the recipe, with its model and rows in `folder`."""
    config = yaml.safe_load((RECIPES / name / "config.yaml").read_text())
    config["model"]["path"], config["report"] = str(folder / "model"), False
    config["data"] = {split: str(folder / Path(path).name) for split, path in config["data"].items()}
    return config


def tables(found: Mapping[str, Any]) -> Mapping[str, str]:
    """The table for docs/plan.md."""
    head = ("recipe", "most tokens after a prompt", *(f"{phase}: planned, measured MB" for phase in PHASES),
            "a step: planned, measured")  # fmt: skip
    return {"planned turns": table(head, [_line(name, one) for name, one in found.items()])}


def _line(name: str, found: Mapping[str, Any]) -> list[str]:
    memory = [f"{found['planned'][phase] / 1e6:.1f}, {found['measured'][phase] / 1e6:.1f}" for phase in PHASES]
    seconds = f"{found['planned_seconds']:.2g} s, {found['seconds']:.2g} s"
    return [f"`{name}`", f"{found['trajectory']:,}", *memory, seconds]


def on_file() -> dict[str, Any]:
    return json.loads(RESULT.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare plans of tasks with several turns with a step of each.")
    parser.add_argument("--models", type=Path)
    parser.add_argument("recipes", nargs="*", default=list(GIVEN))
    options = parser.parse_args()
    found = on_file() if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as place:
        for name in options.recipes:
            found[name] = measure(name, (options.models or Path(place)) / name)
            print(json.dumps({name: found[name]}), flush=True)
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
