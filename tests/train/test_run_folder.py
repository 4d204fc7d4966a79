"""The folder of a run without a named output, and the text that represents a run."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.config import load_config
from posttrain.errors import ConfigError, DataError
from posttrain.evaluate.given import evaluate_given
from posttrain.export.origin import find_origin
from posttrain.pipeline.run import Pipeline
from posttrain.report.store import read_run
from posttrain.train.api import run_folder

ROWS = [{"prompt": word, "completion": word[::-1]} for word in ("abc", "bcd", "cde", "def")]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "demo")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {
        "model": "demo",
        "algorithm": "sft",
        "data": {"train": "train.jsonl", "eval_fraction": 0.5},
        "train": {"steps": 1, "prompts_per_step": 2},
        "evaluation": {"writing": 0},
    }


def test_the_folder_of_a_run_that_never_began_is_taken_by_the_next(config):
    for _ in range(2):
        with pytest.raises(DataError) as failed:
            pt.train(config | {"data": {"train": "missing.jsonl"}})
        assert "runs/demo-sft-1/error.json has the details; you can use the folder again" in failed.value.__notes__[0]
    assert pt.train(config).folder == Path("runs/demo-sft-1")
    assert run_folder(load_config(config, {}).config) == Path("runs/demo-sft-2")


def test_a_folder_that_is_being_set_up_is_left_alone(config):
    folder = Path("runs/demo-sft-1")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("model: demo")
    assert run_folder(load_config(config, {}).config) == Path("runs/demo-sft-2")


@pytest.mark.slow
def test_what_train_returns_stands_for_its_folder(config):
    run = pt.train(config)
    assert os.fspath(run) == str(run.folder)
    assert read_run(run).status == "finished"
    assert find_origin(run).run == run.folder
    assert evaluate_given(run).to_json() == evaluate_given(run.folder).to_json()
    resumed = pt.resume(run, steps=2)
    assert (resumed.folder, resumed.step) == (run.folder, 2)


@pytest.mark.slow
def test_a_pipeline_stands_for_its_folder(config):
    stages = [{"name": "sft", "algorithm": "sft"}]
    pipeline = pt.train({**config, "output": "runs/one", "stages": stages})
    resumed = pt.resume(pipeline)
    assert resumed.folder == pipeline.folder
    with pytest.raises(ConfigError, match="--steps 3 for the pipeline runs/one; "):
        pt.resume(pipeline, steps=3)


def test_a_run_is_shown_by_its_folder_its_steps_and_what_was_measured(config, capfd):
    shown = repr(pt.train(config))
    assert shown.startswith("<Run runs/demo-sft-1, 1 of 1 steps, baseline loss ")
    assert ", trained loss " in shown
    assert len(shown) < 200


def test_a_pipeline_is_shown_by_its_folder_and_what_each_stage_came_to():
    loss = {"trained": {"loss": {"mean": 1.5, "low": 1.0, "high": 2.0, "n": 9}}}
    made: Any = tuple(SimpleNamespace(name=name, evaluation=found) for name, found in (("sft", loss), ("dpo", {})))
    shown = repr(Pipeline(folder=Path("runs/chat-1"), stages=made, model_path=None, export=None))
    assert shown == "<Pipeline runs/chat-1: sft trained loss 1.5 (1 to 2), dpo>"
