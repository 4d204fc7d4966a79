"""The recipe of a game in several turns: a tiny model learns to halve what is left."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as parquet
import pytest
import yaml

import posttrain

RECIPE = Path(__file__).parents[2] / "recipes" / "guess_a_number"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def config(folder: Path, **train: object) -> dict[str, object]:
    """That of the recipe, with its files in the folder."""
    module("start").make(folder / "model")
    (folder / "games.jsonl").write_text(json.dumps({"prompt": "guess"}) + "\n" + json.dumps({"prompt": "guess"}) + "\n")
    found = yaml.safe_load((RECIPE / "config.yaml").read_text())
    found["model"]["path"], found["output"] = str(folder / "model"), str(folder / "run")
    found["data"] = {"train": str(folder / "games.jsonl"), "eval": str(folder / "games.jsonl")}
    found["environment"] = f"{RECIPE / 'game.py'}:Game"
    found["train"] |= train
    return found


@pytest.mark.slow
def test_a_tiny_model_learns_to_find_a_number(tmp_path: Path):
    given = config(tmp_path)
    (tmp_path / "games.jsonl").write_text((json.dumps({"prompt": "guess"}) + "\n") * 64)
    run = posttrain.train(given)
    before, after = (run.evaluation[name]["sampled"]["score"] for name in ("baseline", "trained"))
    print(f"before {before}, after {after}")
    assert before["high"] < after["low"]
    assert after["mean"] >= 0.5


@pytest.mark.slow
def test_a_run_in_turns_goes_on_bit_for_bit(tmp_path: Path):
    """Resumed after its second step, it makes the third step of the run that was never stopped."""
    small = {"steps": 3, "schedule": "constant", "warmup_steps": 0}
    given = config(tmp_path, **small) | {"report": False, "checkpoint": {"every": 1}}
    given["sampling"] |= {"group_size": 8}  # type: ignore[operator]
    given["evaluation"] = {"prompts": 2, "samples": 1, "writing": 0}
    whole = posttrain.train(given)
    part = posttrain.train(given | {"output": str(tmp_path / "part"), "train": {**given["train"], "steps": 2}})  # type: ignore[dict-item]
    again = posttrain.resume(part.folder, steps=3)
    measured = ("time/", "memory/")
    metrics = [
        [{name: repr(value) for name, value in line.items() if not name.startswith(measured)} for line in run.metrics]
        for run in (whole, again)
    ]
    assert metrics[0] == metrics[1]
    tables = [parquet.read_table(Path(run.folder) / "rollouts" / "step-000003.parquet") for run in (whole, again)]
    assert "given" in tables[0].column_names
    rows = [table.drop_columns(["reward/environment/seconds"]).to_pylist() for table in tables]
    assert rows[0] == rows[1]
    weights = [next(Path(run.model_path).glob("*.safetensors")).read_bytes() for run in (whole, again)]  # type: ignore[arg-type]
    assert weights[0] == weights[1]
