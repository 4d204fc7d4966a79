"""Loss, perplexity and token accuracy of held-out answers: over all tokens, with rows as the unit of the intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.config import RunConfig
from posttrain.evaluate.measure import HeldOutLoss
from posttrain.functional.intervals import mean_interval, ratio_interval
from posttrain.tasks.catalogue import find_task
from posttrain.types import Batch, Example, Outputs

BEFORE, AFTER = {10: -1.0, 11: -3.0}, {10: -0.5, 11: -2.0}


def policy(logprobs: Mapping[int, float], *, top1: bool):
    """A policy with a log-probability for each token id; id 10 is always the most likely one."""

    def forward(batch: Batch) -> Outputs:
        assert batch.tokens is not None
        values = torch.zeros(100)
        for token, value in logprobs.items():
            values[token] = value
        ids_BT = batch.tokens.input_ids_BT
        return Outputs(values[ids_BT], top1_BT=ids_BT == 10 if top1 else None)

    return forward


def answer(*ids: int) -> Example:
    return Example(index=0, input_ids=(10, *ids), completion_mask=(False, *(True for _ in ids)))


ROWS = [answer(10, 10, 10), answer(11), answer(10, 11)]


def measured(logprobs: Mapping[int, float], folder: Path, name: str, *, top1: bool = False) -> dict[str, Any]:
    config = RunConfig.model_validate(
        {"model": {"path": "any"}, "algorithm": {"name": "sft"}, "data": {"train": "any"}, "train": {"steps": 1}}
    )
    return HeldOutLoss(config, policy(logprobs, top1=top1), ROWS, 0)(folder, name)


def test_every_token_counts_the_same_and_rows_are_what_chance_chose(tmp_path: Path):
    found = measured(BEFORE, tmp_path, "baseline")["baseline"]
    assert found["loss"]["mean"] == pytest.approx((3 * 1 + 3 + 1 + 3) / 6)
    assert found["loss"] == ratio_interval([3.0, 3.0, 4.0], [3, 1, 2], bounds=(0.0, math.inf))._asdict()
    assert found["loss"]["mean"] != pytest.approx(mean_interval([1.0, 3.0, 2.0]).mean)
    assert found["perplexity"]["mean"] == pytest.approx(math.exp(10 / 6))
    assert found["perplexity"]["high"] == pytest.approx(math.exp(found["loss"]["high"]))
    assert (found["prompts"], found["tokens"]) == (3, 6)
    assert "token_accuracy" not in found


def test_token_accuracy_is_told_where_the_forward_pass_tells_it(tmp_path: Path):
    found = measured(BEFORE, tmp_path, "baseline", top1=True)["baseline"]
    accuracy = found["token_accuracy"]
    assert accuracy["mean"] == pytest.approx(4 / 6)  # the prompt's token is not counted
    assert (accuracy["low"], accuracy["high"]) == (0.0, 1.0), "three rows only, but never 150 percent"
    assert found["perplexity"]["low"] >= 1.0


def test_the_change_is_paired_by_row(tmp_path: Path):
    measured(BEFORE, tmp_path, "baseline")
    found = measured(AFTER, tmp_path, "trained")
    assert found["difference"]["loss"] == ratio_interval([-1.5, -1.0, -1.5], [3, 1, 2])._asdict()
    assert found["difference"]["loss"]["mean"] == pytest.approx(
        found["trained"]["loss"]["mean"] - 10 / 6  # the difference of the two means
    )


@pytest.mark.slow
def test_a_supervised_run_tells_all_of_it(tmp_path: Path):
    rows = find_task("sort").rows(64, split="eval")
    data = tmp_path / "answers.jsonl"
    data.write_text("".join(json.dumps({"prompt": r["prompt"], "completion": r["answer"]}) + "\n" for r in rows))
    run = posttrain.train(
        {
            "preset": "smoke",
            "model": {"path": "tiny:sort", "device": "cpu"},
            "algorithm": {"name": "sft"},
            "data": {"train": str(data), "eval_fraction": 0.25},
            "output": str(tmp_path / "run"),
            "report": False,
        }
    )
    before, after = run.evaluation["baseline"], run.evaluation["trained"]
    assert before["perplexity"]["mean"] == pytest.approx(math.exp(before["loss"]["mean"]))
    assert 0 < before["token_accuracy"]["mean"] < 1
    assert run.evaluation["difference"]["loss"]["mean"] == pytest.approx(
        after["loss"]["mean"] - before["loss"]["mean"], abs=1e-6
    )
    step = run.metrics[0]
    assert step["sft/perplexity"] == pytest.approx(math.exp(step["sft/nll"]))
    assert 0 < step["sft/token_accuracy"] < 1
    assert 0 < step["sft/trained_fraction"] < 1
