"""Supervised runs as a whole: packed rows do not see each other, and adapters can learn alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.config import ModelConfig
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path
from posttrain.tasks import find_task
from posttrain.train.run import Run

LORA = {"rank": 8}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "answers.jsonl"
    rows = [*find_task("sort:4").rows(80, split="eval"), *find_task("sort:9").rows(80, split="eval")]
    path.write_text("".join(json.dumps({"prompt": r["prompt"], "completion": r["answer"]}) + "\n" for r in rows))
    return path


def train(answers: Path, output: Path, *, algorithm: Any = "sft", **changes: Any) -> Run:
    settings = {
        "model": {"path": "tiny:sort", "device": "cpu"},
        "algorithm": algorithm,
        "data": {"train": str(answers), "eval_fraction": 0.25},
        "train": {"steps": 20, "prompts_per_step": 16, "learning_rate": 3e-3},
        "output": str(output),
        "report": False,
        "evaluation": {"writing": 0},
    }
    return posttrain.train(settings, **changes)


def apart(run: Run, other: Run) -> float:
    """Return the distance between the trained parameters of two runs."""
    pairs = zip(run.trainer.trained_parameters().values(), other.trainer.trained_parameters().values(), strict=True)
    return float(sum((a - b).square().sum() for a, b in pairs) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, pytest.param(LORA, marks=pytest.mark.slow)], ids=["full", "lora"])
def test_rows_of_different_length_that_are_packed_together_train_as_rows_one_by_one(answers, tmp_path, lora):
    """In the second run each row goes through the model alone, without packing: RULE 45 for whole runs."""
    packed = train(answers, tmp_path / "packed", lora=lora, **{"train.tokens_per_microbatch": 4096})
    single = train(answers, tmp_path / "single", lora=lora, **{"train.tokens_per_microbatch": 1})
    other = train(answers, tmp_path / "other", lora=lora, **{"train.prompts_per_step": 15})
    assert apart(packed, single) < 0.05 * apart(packed, other)
    for together, alone in zip(packed.metrics, single.metrics, strict=True):
        assert together["sft/nll"] == pytest.approx(alone["sft/nll"], abs=1e-3)
        assert together["sft/perplexity"] == pytest.approx(alone["sft/perplexity"], rel=1e-3)


@pytest.mark.slow
def test_adapters_learn_and_the_base_stays(answers, tmp_path):
    run = train(answers, tmp_path / "run", lora=LORA)
    change = run.evaluation["difference"]["loss"]
    assert change["high"] < 0
    trained = run.trainer.trained_parameters()
    assert trained
    assert all("lora" in name for name in trained)
    start = load_model(resolve_model_path(ModelConfig(path="tiny:sort", device="cpu"), 0)).model.state_dict()
    for name, tensor in run.trainer.loaded.model.get_base_model().state_dict().items():
        if "lora" not in name:
            assert torch.equal(tensor, start[name.replace(".base_layer", "")]), name


@pytest.mark.slow
def test_dft_moves_less_where_the_model_finds_the_answer_impossible(answers, tmp_path):
    plain = train(answers, tmp_path / "plain", **{"train.steps": 1})
    weighted = train(answers, tmp_path / "weighted", algorithm={"name": "sft", "dft": True}, **{"train.steps": 1})
    step, other = plain.metrics[0], weighted.metrics[0]
    assert other["sft/nll"] == step["sft/nll"]
    assert other["loss"] < step["loss"]
    assert other["grad_norm"] < step["grad_norm"]
