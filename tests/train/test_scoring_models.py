"""Reward models on ratings and on labelled steps: trained, measured, resumed bit for bit, loaded by other libraries,
and used as the reward of a policy."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.catalogue import few
from tests.tiny import tiny_model
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

import posttrain
from posttrain.config import ModelConfig, load_config
from posttrain.errors import ConfigError, DataError
from posttrain.models.reward_head import ScoringFacts, load_reward_model, load_step_model, row_scores, step_scores
from posttrain.train import sources
from posttrain.train.run import Run
from posttrain.types import Tokens

LETTERS = "abcd"
STEPS = 100
ENOUGH = {"ratings": 40, "steps": 60}
"""Steps of the runs that the tests share: enough to tell right steps from wrong ones, and a scale from none."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model over four letters; ratings that count the a's; steps that are right if they have no c; and prompts."""
    folder = tmp_path_factory.mktemp("scoring")
    tiny_model(folder / "model", characters=f"{LETTERS} ")
    dice = random.Random(0)

    def word(longest: int = 4) -> str:
        return "".join(dice.choices(LETTERS, k=dice.randint(1, longest)))

    write(folder / "ratings.jsonl", [rated(word(3), word(6)) for _ in range(800)])
    write(folder / "steps.jsonl", [labelled(word(3), [word(3) for _ in range(dice.randint(1, 4))]) for _ in range(600)])
    write(folder / "prompts.jsonl", [{"prompt": word(3)} for _ in range(24)])
    (folder / "true.py").write_text(
        "def count_a(completion):\n    return float(completion.count('a'))\n"
        "def share_without_c(completion):\n"
        "    steps = completion.split()\n    return sum('c' not in s for s in steps) / max(1, len(steps))\n"
    )
    return folder


def rated(prompt: str, completion: str) -> dict[str, Any]:
    """A rated row, on a scale that does not begin at 0."""
    return {"prompt": prompt, "completion": completion, "score": 10 + 2 * completion.count("a")}


def labelled(prompt: str, steps: list[str]) -> dict[str, Any]:
    return {"prompt": prompt + " ", "completions": steps, "labels": ["c" not in step for step in steps]}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


REGRESSION = {
    "algorithm": "reward_regression",
    "data": {"train": "ratings.jsonl", "eval_fraction": 0.1, "hold_out": "rows"},
}
PROCESS = {
    "algorithm": {"name": "process_reward_model", "separator": " "},
    "data": {"train": "steps.jsonl", "eval_fraction": 0.1},
}
KINDS = {"ratings": REGRESSION, "steps": PROCESS}


def config(folder: Path, kind: Mapping[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    train = {"steps": STEPS, "prompts_per_step": 32, "learning_rate": 5e-3}
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        **kind,
        "data": {**kind["data"], "train": str(folder / kind["data"]["train"])},
        "train": {**train, **changes.pop("train", {})},
        "output": str(folder / name),
        "report": False,
        **changes,
    }


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(max(run.glob("checkpoints/step-*")) / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def runs(folder) -> dict[str, Run]:
    return {name: posttrain.train(shared(folder, name, name)) for name in KINDS}


@pytest.fixture(scope="module")
def begun(folder) -> dict[str, Run]:
    """Runs of a few steps, for tests of what is saved."""
    return {name: posttrain.train(config(folder, KINDS[name], f"{name}-begun", train={"steps": 3})) for name in KINDS}


def shared(folder: Path, kind: str, name: str) -> dict[str, Any]:
    return config(folder, KINDS[kind], name, train={"steps": ENOUGH[kind]}, checkpoint={"every": 15})


# what the model learns and what the run reports


@pytest.mark.slow
def test_a_regression_predicts_ratings_in_the_units_of_the_data(folder):
    run = posttrain.train(config(folder, REGRESSION, "rated"))
    before, after = (run.evaluation[name] for name in ("baseline", "trained"))
    assert before["ratings"] == after["ratings"] == 80
    assert after["rmse"]["high"] < 0.7 * before["rmse"]["low"]
    assert run.evaluation["difference"]["rmse"]["high"] < 0
    assert after["pearson"]["low"] > 0.8
    assert after["spearman"]["low"] > 0.8
    bins = after["calibration"]["bins"]
    assert sum(b["n"] for b in bins) == 80
    assert all(9 < b["predicted"] < 25 for b in bins)
    assert bins[0]["found"]["mean"] < bins[-1]["found"]["mean"]
    assert {"loss", "mae", "explained_variance", "reward/mean", "reward/std"} <= run.metrics[-1].keys()
    assert run.metrics[-1]["explained_variance"] > 0.8


@pytest.mark.slow
def test_a_process_reward_model_tells_right_steps_from_wrong_ones(runs):
    before, after = (runs["steps"].evaluation[name] for name in ("baseline", "trained"))
    assert after["answers"] == 60
    assert after["steps"] > 100
    assert after["accuracy"]["low"] > 0.85 > before["accuracy"]["high"]
    assert after["auc"]["low"] > 0.8
    assert after["brier"]["high"] < before["brier"]["low"]
    assert after["calibration"]["error"]["mean"] < 0.1
    assert after["calibration"]["error_by_chance"] < 0.1
    assert runs["steps"].evaluation["difference"]["accuracy"]["low"] > 0
    assert {"loss", "accuracy", "step/right_mean", "step/wrong_mean", "step/count"} <= runs["steps"].metrics[-1].keys()


@pytest.mark.slow
def test_pairs_are_measured_for_calibration_too(folder):
    pairs = [{"prompt": "b", "chosen": "a" * n, "rejected": "c" * n} for n in range(1, 9)] * 4
    write(folder / "pairs.jsonl", pairs)
    kind = {"algorithm": "reward_model", "data": {"train": "pairs.jsonl", "eval_fraction": 0.25}}
    run = posttrain.train(config(folder, kind, "pairs"))
    after = run.evaluation["trained"]
    assert after["accuracy"]["mean"] == 1
    assert after["brier"]["mean"] < run.evaluation["baseline"]["brier"]["mean"]
    assert after["calibration"]["bins"][-1]["predicted"] > 0.9
    assert all(0.5 <= b["predicted"] <= 1 for b in after["calibration"]["bins"])


# what the run saves


@pytest.mark.slow
def test_other_programs_open_what_was_saved_and_score_alike(begun):
    ids = torch.tensor([[3, 7, 3, 4, 7]])
    tokens = Tokens(input_ids_BT=ids, lengths_B=torch.tensor([5]))
    place = ModelConfig(path=str(begun["steps"].model_path), device="cpu")
    peer = AutoModelForTokenClassification.from_pretrained(begun["steps"].model_path)
    ends_BT = torch.tensor([[False, True, False, False, True]])
    ours = step_scores(load_step_model(place, trained=True).model, tokens, ends_BT)
    theirs = peer(input_ids=ids).logits[..., 0]
    torch.testing.assert_close(ours, torch.where(ends_BT, theirs, 0.0), rtol=1e-5, atol=1e-6)
    place = ModelConfig(path=str(begun["ratings"].model_path), device="cpu")
    peer = AutoModelForSequenceClassification.from_pretrained(begun["ratings"].model_path)
    torch.testing.assert_close(
        row_scores(load_reward_model(place, trained=True).model, tokens),
        peer(input_ids=ids).logits[:, 0],
        rtol=1e-5,
        atol=1e-6,
    )
    assert AutoTokenizer.from_pretrained(begun["steps"].model_path).eos_token == "<eos>"


@pytest.mark.slow
def test_the_folder_says_how_scores_are_made_of_outputs(begun):
    assert begun["ratings"].model_path is not None
    assert begun["steps"].model_path is not None
    facts = ScoringFacts.read(begun["ratings"].model_path)
    assert (facts.link, facts.answers) == ("identity", 80)
    assert 10 < facts.target_mean < 14
    assert facts.mean == pytest.approx(facts.target_mean, abs=1)
    facts = ScoringFacts.read(begun["steps"].model_path)
    assert (facts.separator, facts.aggregate, facts.answers) == (" ", "min", 60)


@pytest.mark.slow
def test_logistic_regression_gives_numbers_between_0_and_1(folder):
    rows = [json.loads(line) for line in (folder / "ratings.jsonl").read_text().splitlines()]
    write(folder / "shares.jsonl", [{**row, "score": (row["score"] - 10) / 12} for row in rows])
    kind = {
        "algorithm": {"name": "reward_regression", "regress": "logistic"},
        "data": {"train": "shares.jsonl", "eval_fraction": 0.25},
    }
    run = posttrain.train(config(folder, kind, "shares"))
    assert run.model_path is not None
    assert ScoringFacts.read(run.model_path).link == "logistic"
    assert run.evaluation["trained"]["spearman"]["low"] > 0.8
    assert 0 <= run.evaluation["trained"]["calibration"]["bins"][0]["predicted"] < 1


def test_both_answers_of_a_pair_with_scores_are_rated(folder):
    """The rows have the format of UltraFeedback."""
    rows = [
        {"prompt": "b", "chosen": "ab", "rejected": "c" * n, "score_chosen": 8.0, "score_rejected": n}
        for n in (1, 2, 3)
    ]
    write(folder / "scored.jsonl", rows * 4)
    kind = {"algorithm": "reward_regression", "data": {"train": "scored.jsonl", "eval_fraction": 0.25}}
    run = posttrain.train(config(folder, kind, "scored", train={"steps": 1}))
    assert run.feed.describe() == "18 rated answers"
    assert run.evaluation["trained"]["ratings"] == 6


# what must not change the result


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(KINDS, "steps"))
def test_the_split_into_microbatches_does_not_change_the_gradient(folder, kind):
    norms = []
    for name, tokens in (("small", 24), ("large", 4096)):
        settings = config(folder, KINDS[kind], f"{kind}-{name}", train={"steps": 3, "tokens_per_microbatch": tokens})
        norms.append([row["grad_norm"] for row in posttrain.train(settings).metrics])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(KINDS, "ratings"))
def test_a_run_that_died_resumes_to_the_same_bits(folder, runs, kind, monkeypatch):
    settings, record = shared(folder, kind, f"{kind}-died"), Run.record_step

    def dies(self: Run, *args: Any) -> None:
        record(self, *args)
        if self.step == 21:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "record_step", dies)
    with pytest.raises(KeyboardInterrupt):
        posttrain.train(settings)
    monkeypatch.setattr(Run, "record_step", record)
    resumed = posttrain.resume(settings["output"])
    for name, tensor in weights(runs[kind].folder).items():
        assert torch.equal(weights(resumed.folder)[name], tensor), name
    assert resumed.evaluation == runs[kind].evaluation


@pytest.mark.parametrize(("kind", "heldout"), [("ratings", "HeldOutRatings"), ("steps", "HeldOutSteps")])
def test_each_version_of_the_weights_scores_the_held_out_rows_once(folder, kind, heldout, monkeypatch):
    """The measure needs the scores, and so does the scale that is written with the model."""
    subject = getattr(sources, heldout)
    plain, found = subject.scores, []

    def counted(self):
        found.append(plain(self))
        return found[-1]

    monkeypatch.setattr(subject, "scores", counted)
    changes = {"train": {"steps": 3}, "checkpoint": {"every": 1, "keep": 9}, "evaluation": {"every": 1}}
    run = posttrain.train(config(folder, KINDS[kind], f"{kind}-once", **changes))
    assert len(found) == 4
    assert len({json.dumps(scores) for scores in found}) == 4
    names = ["baseline", "step-1", "step-2", "trained"]
    assert [json.loads((run.folder / "evaluations" / f"{name}-scores.json").read_text()) for name in names] == found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_merged_into_what_is_saved(folder, kind):
    run = posttrain.train(config(folder, KINDS[kind], f"{kind}-lora", lora={"rank": 8}))
    assert run.evaluation["difference"]["rmse" if kind == "ratings" else "accuracy"]["mean"] != 0
    assert not [name for name in weights(run.folder) if "lora" in name]
    opens = AutoModelForSequenceClassification if kind == "ratings" else AutoModelForTokenClassification
    assert opens.from_pretrained(run.model_path).config.num_labels == 1


# the model as a reward


def online(folder: Path, model: Path, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.25},
        "rewards": [{"model": str(model)}],
        "sampling": {"group_size": 8, "max_completion_length": 8},
        "train": {"steps": 20, "prompts_per_step": 6, "learning_rate": 5e-3},
        "evaluation": {"writing": 0, "samples": 0},
        "guards": {"max_truncated": 1.0, "max_unscored": 1.0},
        "output": str(folder / name),
        "report": False,
        **changes,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "truth"), few([("ratings", "count_a"), ("steps", "share_without_c")], ("ratings", "count_a"))
)
def test_a_policy_learns_what_the_model_rewards_and_what_it_was_trained_on(folder, runs, kind, truth):
    """The true score is a reward with weight 0."""
    learned: dict[str, Any] = {"model": str(runs[kind].folder)}
    if kind == "steps":
        learned["settings"] = {"aggregate": "mean"}
    rewards = [learned, {"function": f"{folder / 'true.py'}:{truth}", "weight": 0}]
    run = posttrain.train(online(folder, Path(), f"policy-{kind}", rewards=rewards))

    def mean(name: str, steps: slice) -> float:
        return statistics.fmean(row[name] for row in run.metrics[steps])

    for name in ("reward", f"rewards/{truth}/mean"):
        assert mean(name, slice(-4, None)) > mean(name, slice(0, 4)) + 0.1, name
    if kind == "ratings":
        assert mean("reward", slice(0, 4)) > 8  # the scale of the data begins at 10


@pytest.mark.slow
def test_the_section_reward_model_trains_either_kind_first(folder):
    stage = {
        "algorithm": PROCESS["algorithm"],
        "data": {"train": str(folder / "steps.jsonl"), "eval_fraction": 0.25},
        "train": {"steps": 5, "learning_rate": 5e-3},
        "report": False,
    }
    run = posttrain.train(
        online(folder, Path("reward_model"), "stage", reward_model=stage, train={"steps": 2, "prompts_per_step": 4})
    )
    assert run.evaluation["reward_model"]["trained"]["answers"] == 150
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    told = [json.loads(line)["message"] for line in lines if "reward_model: " in line]
    assert any("of the steps of 150 held-out answers judged rightly" in message for message in told)


# configurations that are refused


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("ratings", {"completion": None}, r"no value in column 'completion'"),
        ("ratings", {"score": "high"}, r"score is not a finite number"),
        ("ratings", {"score": math.nan}, r"score is not a finite number"),
        ("ratings", {"score": 3}, r"all \d+ ratings are 3; allowed: ratings that differ"),
        ("steps", {"labels": [True] * 9}, r"completions and labels of different length"),
        ("steps", {"labels": [2.0]}, r"neither true, false nor between 0 and 1"),
        ("steps", {"completions": [], "labels": []}, r"no steps"),
        ("steps", {"completions": "a b", "labels": [1.0]}, r"completions: a str, not a list"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_named(folder, kind, changes, message):
    rows = [json.loads(line) for line in (folder / f"{kind}.jsonl").read_text().splitlines()]
    if changes.get("labels") == [2.0]:
        rows = [{**row, "completions": row["completions"][:1]} for row in rows]
    write(folder / "broken.jsonl", [row | changes for row in rows])
    settings = config(folder, {**KINDS[kind], "data": {"train": "broken.jsonl"}}, "broken")
    with pytest.raises(DataError, match=message):
        posttrain.train(settings)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (REGRESSION, "steps", r"rated answers cannot be made of the columns prompt, completions, labels"),
        (PROCESS, "ratings", r"judged steps cannot be made of the columns prompt, completion, score"),
        (
            {**REGRESSION, "algorithm": {"name": "reward_regression", "regress": "logistic"}},
            "ratings",
            r"600 of 600 ratings are not between 0 and 1.*\n.*regress = standardized",
        ),
    ],
)
def test_data_of_another_kind_or_scale_is_refused_with_what_to_do(folder, kind, data, message):
    settings = config(folder, {**kind, "data": {"train": f"{data}.jsonl", "eval_fraction": 0.25}}, "other")
    with pytest.raises(DataError, match=message):
        posttrain.train(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.separator": ""}, r"algorithm.separator = "),
        ({"algorithm.aggregate": "sum"}, r"aggregate = sum; allowed: min, prod, last or mean"),
    ],
)
def test_a_process_reward_model_that_cannot_be_meant_is_refused(folder, settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(config(folder, PROCESS, "x"), settings)
