"""Weights that are published every few steps: the sampled rows then have a known, older policy version."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.errors import ConfigError
from posttrain.train.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("publishing")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    return folder


def train(folder: Path, name: str, **overrides) -> Run:
    config = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.2},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 6, "prompts_per_step": 2, "learning_rate": 0.01, "publish_every": 3},
        "evaluation": {"writing": 0, "prompts": 3, "samples": 1},
        "checkpoint": {"every": 1, "keep": 9},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **overrides)


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return train(folder, "stale")


def column(run: Run, name: str) -> list[float | None]:
    return [row.get(name) for row in run.metrics]


@pytest.mark.slow
def test_the_data_gets_older_until_the_weights_are_published(run):
    assert column(run, "staleness/mean") == column(run, "staleness/max") == column(run, "staleness/min")
    assert column(run, "staleness/mean") == [0, 1, 2, 0, 1, 2]
    files = sorted((run.folder / "rollouts").glob("*.parquet"))
    assert [set(parquet.read_table(file)["version"].to_pylist()) for file in files] == [{0}] * 3 + [{3}] * 3


def test_the_delivery_is_proven_whenever_there_is_one(run):
    assert [value is not None for value in column(run, "publish/tensors_compared")] == [False, False, True] * 2


def test_the_sampler_is_further_from_the_trainer_the_older_its_weights_are(run):
    fresh, one, two, again, *_ = column(run, "sampling/sampling_logp_difference/mean")
    assert max(fresh, again) < 1e-5 < one < two


@pytest.mark.slow
def test_without_it_every_step_is_fresh(folder):
    assert column(train(folder, "fresh", **{"train.publish_every": 1, "train.steps": 3}), "staleness/max") == [0.0] * 3


@pytest.mark.slow
def test_evaluations_judge_the_present_weights_and_not_those_that_sample(folder, run):
    """This also holds between two publications: after five of six steps the sampler still has version 3."""
    stopped = train(folder, "five", **{"train.steps": 5})
    assert stopped.trainer.held.version == 3
    again = posttrain.evaluate(stopped.folder)
    trained = stopped.evaluation["trained"]
    assert again.to_json()["greedy"] == trained["greedy"]
    assert again.to_json()["sampled"] == trained["sampled"]


def weights(run: Run) -> dict[str, str]:
    folder = run.folder / "checkpoints" / "step-000006"
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "manifest" not in path.name]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def records(run: Run) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in run.metrics]


@pytest.mark.parametrize("stop", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"lora": {"rank": 4}}, marks=pytest.mark.slow)], ids=["whole model", "adapters"]
)
def test_a_resumed_run_samples_with_the_weights_that_were_published(folder, run, stop, settings):
    name = f"{len(settings)}-{stop}"
    whole = train(folder, f"whole-{name}", **settings) if settings else run
    first = train(folder, f"part-{name}", **settings, **{"train.steps": stop})
    resumed = posttrain.resume(first.folder, steps=6)
    assert records(resumed) == records(whole)
    assert weights(resumed) == weights(whole)


def test_only_weights_that_differ_from_the_present_ones_are_saved_twice(run):
    sizes = {
        int(path.name.removeprefix("step-")): (path / "state" / "tensors.safetensors").stat().st_size
        for path in sorted((run.folder / "checkpoints").iterdir())
    }
    assert sizes[3] == sizes[6] < sizes[1] == sizes[2] == sizes[4] == sizes[5]
    plain = json.loads((run.folder / "checkpoints" / "step-000004" / "state" / "plain.json").read_text())
    assert "published" in json.dumps(plain)


def test_stale_data_of_an_algorithm_that_samples_nothing_is_refused(folder):
    with pytest.raises(ConfigError, match=r"train\.publish_every = 3, but sft learns from examples"):
        train(folder, "sft", algorithm="sft", rewards=[])
