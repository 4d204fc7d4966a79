"""A reward model is trained first, and the run then learns from its scores: one configuration, one resume."""

from __future__ import annotations

import json
import random
import shutil
import string
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import tiny_model, write_prompts
from transformers import AutoModelForSequenceClassification

import posttrain
from posttrain.config import load_config
from posttrain.errors import ConfigError, DataError, NonFiniteError
from posttrain.models.reward_head import ScoringFacts
from posttrain.train.api import read_inputs
from posttrain.train.run import Run

VOWELS = "aeiou"
STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model, prompts, and pairs in which the chosen answer has more vowels."""
    folder = tmp_path_factory.mktemp("stage")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    dice = random.Random(0)

    def answer(letters: str) -> str:
        return "".join(dice.choices(letters, k=dice.randint(2, 5)))

    consonants = "".join(sorted(set(string.ascii_lowercase) - set(VOWELS)))
    rows = [{"prompt": answer(consonants), "chosen": answer(VOWELS), "rejected": answer(consonants)} for _ in range(80)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "check.py").write_text(
        f"def vowels(completion):\n    return sum(c in '{VOWELS}' for c in completion) / max(1, len(completion))\n"
    )
    return folder


def config(folder: Path, name: str) -> dict:
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": {"name": "grpo", "kl_coef": 0.01},
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.5},
        "rewards": [{"model": "reward_model", "settings": {"normalize": True}}],
        "check": [{"function": f"{folder / 'check.py'}:vowels"}],
        "reward_model": {
            "data": {"train": str(folder / "pairs.jsonl"), "eval_fraction": 0.25},
            "train": {"steps": 10, "prompts_per_step": 16, "learning_rate": 5e-3},
            "checkpoint": {"every": 4},
            "report": False,
        },
        "sampling": {"group_size": 4, "max_completion_length": 5},
        "train": {"steps": STEPS, "prompts_per_step": 4, "learning_rate": 5e-3},
        "evaluation": {"writing": 0, "prompts": 10, "samples": 0},
        "checkpoint": {"every": 4},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }


def weights(run_folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted(run_folder.glob("checkpoints/step-*"))[-1]
    return load_file(newest / "model" / "model.safetensors")


def events(run_folder: Path, kind: str) -> list[str]:
    lines = (run_folder / "events.jsonl").read_text().splitlines()
    return [event["message"] for event in map(json.loads, lines) if event["kind"] == kind]


def assert_same_run(actual: Path, expected: Path) -> None:
    for name in (".", "reward_model"):
        for key, tensor in weights(expected / name).items():
            assert torch.equal(weights(actual / name)[key], tensor), key
    ours, theirs = (json.loads((run / "evaluation.json").read_text()) for run in (actual, expected))
    assert ours == theirs


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return posttrain.train(config(folder, "whole"))


@pytest.fixture(scope="module")
def short(folder) -> Run:
    """The same run up to its second step."""
    return posttrain.train(config(folder, "short"), **{"train.steps": 2, "evaluation.prompts": 2})


@pytest.mark.slow
def test_the_policy_raises_the_learned_reward_and_with_it_the_true_one(run):
    before, after = run.evaluation["baseline"], run.evaluation["trained"]
    assert after["greedy"]["score"]["mean"] > before["greedy"]["score"]["mean"] + 0.3
    assert after["check"]["vowels"]["mean"] > before["check"]["vowels"]["mean"] + 0.2
    assert run.metrics[-1]["kl"] > 0


@pytest.mark.slow
def test_the_policy_is_rewarded_by_the_model_alone(short):
    for row in short.metrics:
        assert row["rewards/reward_model/mean"] == pytest.approx(row["reward"])


@pytest.mark.slow
def test_the_reward_model_has_a_run_of_its_own_and_its_accuracy_is_told(short):
    stage = short.evaluation["reward_model"]
    assert stage["trained"]["accuracy"]["mean"] > 0.9
    assert stage["trained"]["pairs"] == 20
    assert stage == json.loads((short.folder / "reward_model" / "evaluation.json").read_text())
    assert any("of 20 held-out pairs in the right order" in message for message in events(short.folder, "evaluation"))
    metrics = (short.folder / "reward_model" / "metrics.jsonl").read_text().splitlines()
    assert {"accuracy", "margin", "reward/chosen_mean", "loss"} <= json.loads(metrics[-1]).keys()


def test_what_was_trained_is_a_folder_that_transformers_opens(short):
    saved = short.folder / "reward_model" / "checkpoints" / "step-000010" / "model"
    assert AutoModelForSequenceClassification.from_pretrained(saved).config.num_labels == 1
    facts = ScoringFacts.read(saved)
    assert facts.answers == 40
    assert facts.std is not None
    assert facts.chat is False


@pytest.fixture
def stopped_at(monkeypatch):
    """Let a run end as if it was killed, at a step of the stage or of the run around it."""

    def stop(settings: dict, *, in_stage: bool, step: int) -> None:
        record = Run.record_step

        def dies(self: Run, *args) -> None:
            record(self, *args)
            if (self.folder.name == "reward_model") == in_stage and self.step == step:
                raise KeyboardInterrupt

        monkeypatch.setattr(Run, "record_step", dies)
        with pytest.raises(KeyboardInterrupt) as stopped:
            posttrain.train(settings)
        monkeypatch.setattr(Run, "record_step", record)
        notes = "\n".join(stopped.value.__notes__)
        assert f"posttrain resume {settings['output']}`" in notes
        assert "resume" not in notes.replace(f"posttrain resume {settings['output']}`", "")

    return stop


@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.slow), 6])
def test_a_run_that_died_while_the_reward_model_was_trained_resumes_to_the_same_run(folder, run, stopped_at, step):
    """Stop before and after the first checkpoint of the stage."""
    settings = config(folder, f"stage-{step}")
    stopped_at(settings, in_stage=True, step=step)
    resumed = posttrain.resume(settings["output"])
    assert_same_run(resumed.folder, run.folder)
    assert events(resumed.folder / "reward_model", "resume")


@pytest.mark.slow
def test_a_reward_model_that_is_finished_is_not_trained_again(folder, run, stopped_at):
    settings = config(folder, "around")
    stopped_at(settings, in_stage=False, step=6)
    before = (Path(settings["output"]) / "reward_model" / "metrics.jsonl").stat().st_mtime_ns
    resumed = posttrain.resume(settings["output"])
    assert_same_run(resumed.folder, run.folder)
    assert (resumed.folder / "reward_model" / "metrics.jsonl").stat().st_mtime_ns == before
    assert not events(resumed.folder / "reward_model", "resume")


def edit(run: Path, old: str, new: str) -> None:
    file = run / "config.yaml"
    text = file.read_text()
    assert text.count(f" {old} ") == 1, old
    file.write_text(text.replace(f" {old} ", f" {new} "))


def test_an_unfinished_reward_model_is_resumed_with_the_settings_that_the_config_has_now(folder):
    """As the error of its training advises, which names the config.yaml of the run around it."""
    settings, rate = config(folder, "mended"), {"reward_model.train.learning_rate": 1e30, "train.steps": 1}
    with pytest.raises(NonFiniteError, match=r"Lower train\.learning_rate"):
        posttrain.train(settings, **rate)
    outer = folder / "mended"
    edit(outer, "learning_rate: 1.0e+30", "learning_rate: 2.0e-03")
    edit(outer, "steps: 10", "steps: 3")
    assert posttrain.resume(outer).step == 1
    rows = [json.loads(line) for line in (outer / "reward_model" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[-1]["learning_rate"] == 2e-3


def test_an_unfinished_reward_model_is_not_resumed_to_fewer_steps_than_it_has(folder, monkeypatch):
    settings, record = config(folder, "fewer"), Run.record_step

    def dies(self: Run, *args) -> None:
        record(self, *args)
        if self.step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "record_step", dies)
    with pytest.raises(KeyboardInterrupt):
        posttrain.train(settings)
    monkeypatch.setattr(Run, "record_step", record)
    edit(folder / "fewer", "steps: 10", "steps: 3")
    with pytest.raises(
        ConfigError, match=r"(?s)^reward_model.train.steps = 3, but .* 4 steps.*reward_model.train.steps = 4"
    ):
        posttrain.resume(folder / "fewer")


def test_a_change_that_comes_after_the_reward_model_is_finished_is_said_to_have_no_effect(short, tmp_path):
    run = shutil.copytree(short.folder, tmp_path / "late")
    posttrain.resume(run)
    assert not [said for said in events(run, "warning") if "effect" in said], "nothing has changed, but for the folder"
    edit(run, "steps: 10", "steps: 9")
    posttrain.resume(run, steps=3)
    (ignored, changed) = [said for said in events(run, "warning") if "(was" in said]
    assert ignored.startswith("without effect, because the reward model is trained already: ")
    assert "already: reward_model.train.steps = 9 (was 10). A new run" in ignored
    assert changed == "the settings changed after step 2: train.steps = 3 (was 2)"
    assert not any(name.startswith("reward_model") for name in json.loads((run / "settings.json").read_text())["2"])


@pytest.mark.slow
def test_pairs_that_cannot_be_read_leave_a_folder_that_can_be_used_again(folder):
    settings = config(folder, "again")
    wrong = {**settings["reward_model"], "data": {"train": str(folder / "prompts.jsonl")}}
    with pytest.raises(DataError, match="preference pairs cannot be made of the columns prompt, answer"):
        posttrain.train({**settings, "reward_model": wrong})
    steps = {"train.steps": 2, "reward_model.train.steps": 2, "evaluation.prompts": 2}
    assert posttrain.train(settings, **steps).step == 2


@pytest.mark.parametrize(
    "gates", [("asked", None), (None, "reward_model")], ids=["a model behind a gate", "a gate that is a model"]
)
def test_a_gate_between_a_function_and_the_trained_model_is_no_error_before_it_is_trained(folder, tmp_path, gates):
    (folder / "gate.py").write_text("def asked(completion):\n    return 1.0\n")
    model, function = (
        {"model": "reward_model", "gate": gates[0]},
        {"function": f"{folder / 'gate.py'}:asked", "weight": 0.0 if gates[0] else 1.0, "gate": gates[1]},
    )
    read_inputs(load_config(config(folder, "gated") | {"rewards": [function, model]}).config, tmp_path)


@pytest.mark.slow
def test_a_reward_model_trains_by_itself_with_adapters_and_several_updates(folder):
    settings = config(folder, "alone")
    alone = {"algorithm": {"name": "reward_model", "center_coef": 0.01}, "lora": {"rank": 4}}
    kept = {name: settings[name] for name in ("model", "output", "report")}
    run = posttrain.train(
        {**kept, **settings["reward_model"], **alone}, **{"train.minibatches": 3, "train.tokens_per_microbatch": 60}
    )
    assert run.evaluation["trained"]["accuracy"]["mean"] > run.evaluation["baseline"]["accuracy"]["mean"]
    assert run.evaluation["difference"]["accuracy"]["low"] > 0
    assert run.model_path is not None
    saved = AutoModelForSequenceClassification.from_pretrained(run.model_path)
    assert not [name for name in saved.state_dict() if "lora" in name]


@pytest.mark.slow
def test_the_split_into_microbatches_does_not_change_a_reward_model(folder):
    settings = config(folder, "")
    norms = []
    for name, tokens in (("small", 12), ("large", 4096)):
        stage = {**settings["reward_model"], "train": {**settings["reward_model"]["train"], "steps": 2}}
        overrides = {"train.tokens_per_microbatch": tokens, "output": str(folder / f"split-{name}")}
        run = posttrain.train({"model": settings["model"], "algorithm": "reward_model", **stage}, **overrides)
        norms.append([row["grad_norm"] for row in run.metrics])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.slow
def test_margins_of_the_data_are_read_when_asked_for_and_told_when_not(folder):
    settings = config(folder, "")
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    for name, margins in (("all", [1.0] * 80), ("some", [1.0] * 70 + [None] * 10)):
        pairs = [{**row, "margin": margin} for row, margin in zip(rows, margins, strict=True)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    stage = {"model": settings["model"], **settings["reward_model"], "train": {"steps": 1}}

    def train(name: str, data: str, margin: object) -> Run:
        overrides = {"data.train": str(folder / f"{data}.jsonl"), "output": str(folder / name)}
        return posttrain.train({**stage, "algorithm": {"name": "reward_model", "margin": margin}}, **overrides)

    assert train("margins-read", "all", "data").metrics[0]["loss"] > train("margins-told", "all", 0).metrics[0]["loss"]
    assert "the column margin is not used; algorithm.margin = data would use it" in events(
        folder / "margins-told", "warning"
    )
    with pytest.raises(DataError, match=r"of 60 pairs have no margin, but reward_model is set to read it"):
        train("margins-missing", "some", "data")


# configurations that are refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": [{"name": "exact_match"}]}, "trains a model that nothing scores with"),
        ({"reward_model": None}, r"rewards\.0\.model = reward_model, but there is no section reward_model"),
        ({"reward_model.output": "elsewhere"}, r"reward_model\.output is set"),
        ({"reward_model.train.stepz": 3}, r"reward_model: train\.stepz = 3 is not a setting.*\n.*steps"),
        ({"reward_model.algorithm": "sft"}, r"reward_model\.algorithm\.name = sft, which trains no score"),
        ({"reward_model.data": None}, r"reward_model: data"),
        ({"reward_model.evaluation": {"forgetting": "a.txt"}}, r"reward_model: evaluation\.forgetting = 'a\.txt'"),
        ({"rewards.0.timeout": 3}, r"timeout = 3 for the reward model 'reward_model', which has no time limit"),
        ({"rewards.0.name": "math"}, r"both name and model are set"),
    ],
)
def test_a_stage_that_cannot_be_meant_is_refused_before_anything_is_trained(folder, changes, message):
    settings = config(folder, "refused")
    with pytest.raises(ConfigError, match=message):
        posttrain.train(settings, **changes)
    assert not (folder / "refused").exists()


def test_the_section_follows_the_run_around_it_unless_it_says_otherwise(folder):
    from posttrain.config import reward_model_config

    settings = config(folder, "x") | {"seed": 7}
    stage = reward_model_config(load_config(settings).config, Path("runs/x")).config
    assert (stage.seed, stage.model.path, stage.algorithm.name) == (7, settings["model"]["path"], "reward_model")
    assert stage.output == str(Path("runs/x/reward_model"))
    settings["reward_model"] |= {"seed": 1, "model": {"precision": "float32"}}
    stage = reward_model_config(load_config(settings).config, Path("runs/x")).config
    assert (stage.seed, stage.model.precision, stage.model.device) == (1, "float32", "cpu")
