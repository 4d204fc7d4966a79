"""A run that ends after its budget of tokens or seconds: it makes the same steps as any other run, but fewer."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.report.terminal import TerminalView
from posttrain.train.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("budget")
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
        "train": {"steps": 5, "prompts_per_step": 2, "learning_rate": 0.01},
        "evaluation": {"writing": 0, "prompts": 3, "samples": 0, "every": 2},
        "checkpoint": {"every": 2},
        "guards": {"max_truncated": 1.0, "no_signal_steps": 99},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **overrides)


@pytest.fixture(scope="module")
def whole(folder) -> Run:
    return train(folder, "whole", **{"checkpoint.every": 1, "checkpoint.keep": 9})


@pytest.fixture(scope="module")
def ended(folder) -> Run:
    """A run of one step, whose settings tests may replace."""
    run = train(folder, "ended", **{"train.steps": 1, "data.eval_fraction": 0.0})
    config = run.config.model_copy(update={"train": run.config.train.model_copy(update={"steps": 5})})
    return replace(run, resolved=replace(run.resolved, config=config))


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors")


@pytest.mark.slow
def test_it_ends_with_the_step_that_reaches_its_tokens(folder, whole):
    tokens = [record["num_tokens"] for record in whole.metrics]
    limited = train(folder, "limited", **{"train.stop_after_tokens": tokens[1] + 1})
    assert [record["num_tokens"] for record in limited.metrics] == tokens[:3]
    assert limited.reached == "train.stop_after_tokens"
    assert all(torch.equal(tensor, weights(whole, 3)[name]) for name, tensor in weights(limited, 3).items())
    exactly = train(folder, "exactly", **{"train.stop_after_tokens": tokens[1]})
    assert len(exactly.metrics) == 2


def test_it_ends_with_the_step_that_reaches_its_seconds(folder):
    said = StringIO()
    limit = {"train.steps": 100_000, "train.stop_after_seconds": 0.1, "train.schedule": "linear"}
    run = train(folder, "seconds", view=TerminalView(said), **limit)
    ends = f"finished {run.step} of 100000 steps: train.stop_after_seconds = 0.1 is reached. The last learning rate was"
    lines = said.getvalue().splitlines()
    (line,) = [number for number, text in enumerate(lines) if text.startswith(f"end: {ends}")]
    assert line < next(number for number, text in enumerate(lines) if "measuring the trained model" in text)
    assert [event["message"].startswith(ends) for event in run.store.read_events("end")] == [True]
    spent = list(accumulate(record["time/step"] for record in run.metrics))
    assert spent[-1] >= 0.1 > (spent[-2] if len(spent) > 1 else 0.0)
    assert run.seconds == pytest.approx(spent[-1])


SECONDS = "train.stop_after_seconds = 9.0"
TOKENS = "train.stop_after_tokens = 70"


@pytest.mark.parametrize(
    ("settings", "at_first", "at_last"),
    [
        ({}, "5", "finished 5 steps"),
        (
            {"stop_after_tokens": 70},
            f"5, unless {TOKENS} ends the run sooner",
            f"finished 3 of 5 steps: {TOKENS} is reached",
        ),
        (
            {"stop_after_seconds": 9.0, "schedule": "linear"},
            f"5, unless {SECONDS} ends the run sooner; train.schedule = linear is laid out over all 5",
            f"finished 3 of 5 steps: {SECONDS} is reached. The last learning rate was 0.006, because train.schedule = "
            "linear is laid out over train.steps = 5",
        ),
        (
            {"stop_after_seconds": 9.0, "stop_after_tokens": 70},
            f"5, unless {TOKENS} or {SECONDS} ends the run sooner",
            f"finished 3 of 5 steps: {TOKENS} is reached",
        ),
    ],
)
def test_a_run_says_first_what_may_end_it_sooner_and_last_what_did(ended, settings, at_first, at_last):
    config = ended.config.model_copy(update={"train": ended.config.train.model_copy(update=settings)})
    run = replace(ended, resolved=replace(ended.resolved, config=config), step=0)
    assert run.describe()["steps"] == at_first
    run = replace(run, step=3 if settings else 5, num_tokens=70, seconds=9.0)
    assert run.ending == at_last


@pytest.mark.slow
def test_one_that_is_gone_on_with_knows_what_it_has_spent(folder, whole):
    limit = whole.metrics[2]["num_tokens"]
    run = train(folder, "stopped", **{"train.steps": 2, "train.stop_after_tokens": limit})
    assert run.reached == "train.steps"
    run = posttrain.resume(run.folder, steps=100)
    assert isinstance(run, Run)
    assert [record["num_tokens"] for record in run.metrics] == [r["num_tokens"] for r in whole.metrics[:3]]
    assert run.seconds == pytest.approx(sum(record["time/step"] for record in run.metrics))
    again = posttrain.resume(run.folder)
    assert isinstance(again, Run)
    assert len(again.metrics) == 3
    warning = [event["message"] for event in again.store.read_events("warning") if event.get("about") == "resume"]
    assert warning == ["nothing is left to train: step 3 reached train.stop_after_tokens"]
