"""The effect of training on prompts that it never saw is measured, and the verdict says whether the model forgot."""

from __future__ import annotations

import json

import pytest
import torch
from tests.report.test_verdict import evaluated
from tests.tiny import tiny_model

import posttrain
from posttrain.config import ModelConfig
from posttrain.errors import DataError
from posttrain.evaluate.forgetting import row_logprobs
from posttrain.evaluate.others import Answered
from posttrain.evaluate.row_scores import RowScores
from posttrain.models.load import load_model
from posttrain.report.verdict import in_brief, verdict

DRIFT = {"mean": 0.05, "low": 0.03, "high": 0.07, "n": 4}
OTHERS = {"prompts": 4, "max_drift": 0.2, "drift": DRIFT, "unchanged": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    tiny_model(folder / "model")
    rows = {
        "prompts": [{"prompt": f"say {n} ", "answer": f"{n}"} for n in range(24)],
        "others": [{"instruction": f"what is {n}?"} for n in range(4)],
    }
    for name, content in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder


def train(folder, name, **more):
    config = {
        "model": {"path": str(folder / "model"), "device": "cpu", "precision": "float32"},
        "algorithm": "grpo",
        "rewards": ["exact_match"],
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.25},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3},
        "sampling": {"group_size": 2, "max_completion_length": 8},
        "evaluation": {"samples": 0, "other_prompts": str(folder / "others.jsonl")},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **more)


@pytest.mark.slow
def test_drift_is_the_fall_of_the_former_answers_per_token(folder):
    run = train(folder, "run", rewards=[lambda prompt, completion: float(len(completion))])
    before, now = (Answered.read(run.folder / "evaluations", side) for side in ("baseline", "trained"))
    loaded = load_model(ModelConfig(path=str(run.model_path), device="cpu"))
    total = 0.0
    for answer in before.answers:
        ids = [*loaded.tokenizer(answer["prompt"]).input_ids, *answer["ids"]]
        logprobs = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        begin = len(ids) - len(answer["ids"])
        total += sum(logprobs[place - 1, ids[place]].item() for place in range(begin, len(ids)))
    tokens = sum(len(answer["ids"]) for answer in before.answers)
    others = run.evaluation["others"]
    assert others["prompts"] == 4
    assert others["drift"]["mean"] == pytest.approx((sum(before.scores.logprobs) - total) / tokens, abs=1e-5)
    same = [old["text"] == new["text"] for old, new in zip(before.answers, now.answers, strict=True)]
    assert others["unchanged"] == sum(same) / 4


@pytest.mark.slow
def test_a_model_that_did_not_move_has_no_drift(folder):
    others = train(folder, "still", **{"train.learning_rate": 0.0}).evaluation["others"]
    assert (others["drift"]["mean"], others["unchanged"]) == (pytest.approx(0.0, abs=1e-7), 1.0)


def test_of_a_row_only_what_is_predicted_counts(folder):
    loaded = load_model(ModelConfig(path=str(folder / "model"), device="cpu"))
    found = row_logprobs(loaded.model, [([3, 4], [5]), ([3], [4, 5])], compute_dtype=torch.float32, chunk_tokens=64)
    logprobs = loaded.model(torch.tensor([[3, 4, 5]])).logits[0].log_softmax(-1)
    last, both = logprobs[1, 5].item(), (logprobs[0, 4] + logprobs[1, 5]).item()
    assert found == RowScores([pytest.approx(last, abs=1e-5), pytest.approx(both, abs=1e-5)], [1, 2])


def test_a_file_without_prompts_is_refused_before_the_model_is_loaded(folder):
    (folder / "numbers.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(DataError, match="no column for the prompt"):
        train(folder, "refused", **{"evaluation.other_prompts": str(folder / "numbers.jsonl")})


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_a_better_model_that_kept_other_prompts_is_said_to_have():
    run = evaluated(0.2, 0.9, others=OTHERS)
    assert verdict(run).headline == "The model improved, and on other prompts it stays within the bound."
    assert (
        "became less likely by 0.050 nats per token (0.030 to 0.070) (bound 0.2); 50% are" in verdict(run).sentences[-1]
    )
    assert "forgot" not in in_brief(run)


def test_beyond_the_bound_it_has_forgotten_whatever_it_gained():
    run = evaluated(0.2, 0.9, others=OTHERS | {"max_drift": 0.04})
    found = verdict(run)
    assert found.headline.startswith("The model improved, and it has forgotten: its former answers to other prompts")
    assert (found.tone, found.change) == ("bad", 0)
    assert in_brief(run)["forgot"] == [
        "its former answers to other prompts became less likely by 0.050 nats per token (0.030 to 0.070), which "
        "exceeds the bound of 0.04"
    ]


def test_one_answer_to_everything_is_forgetting_within_any_drift():
    alike = {"difference": {"same": {"mean": 0.9, "low": 0.7, "high": 1.0, "n": 4}}}
    found = verdict(evaluated(0.2, 0.9, others=OTHERS | alike))
    assert found.headline == "The model improved, and it has forgotten: it gives different prompts the same answer."


def test_of_a_model_that_did_not_improve_keeping_the_rest_is_no_merit():
    assert verdict(evaluated(0.9, 0.9, others=OTHERS)).headline == "No improvement is shown."


def test_a_drift_whose_interval_crosses_the_bound_is_praised_by_nobody():
    unsure = {**OTHERS, "drift": {"mean": 0.176, "low": 0.099, "high": 0.252, "n": 64}}
    assert "other prompts it" not in verdict(evaluated(0.2, 0.9, others=unsure)).headline
