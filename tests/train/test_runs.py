"""Whole runs of a second: edge cases of the training loop."""

from __future__ import annotations

import errno
import json
import os
import shutil

import pytest
import torch
from tests.tiny import tiny_model, write_prompts
from transformers import AutoModelForCausalLM

import posttrain
from posttrain.config import load_config
from posttrain.data.read import Row
from posttrain.data.split import Split
from posttrain.errors import CheckpointError, GuardStop, ModelError
from posttrain.files import PATIENCE
from posttrain.store import run_store
from posttrain.store.checkpoint import Checkpoints, load_state
from posttrain.train.setup import few_heldout_notes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    (folder / "text.txt").write_text("some letters to remember " * 20)
    return folder


def train(folder, name, **overrides):
    config = {
        "model": str(folder / "model"),
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 2, "prompts_per_step": 2, "learning_rate": 1e-3},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **overrides)


@pytest.fixture(scope="module")
def plain(folder):
    """A run of the settings above, for tests that only read it."""
    return train(folder, "plain")


def warnings_of(run) -> list[str]:
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    return [event["message"] for event in map(json.loads, lines) if event["kind"] == "warning"]


@pytest.mark.slow
def test_few_held_out_rows_are_warned_of_where_more_were_asked_for(folder, plain):
    asked = train(folder, "few", **{"evaluation.prompts": 64, "train.steps": 1})
    (said,) = [warning for warning in warnings_of(asked) if "held out" in warning]
    assert said.startswith("only 2 of 20 rows are held out: their score may be off by 41 points by chance alone")
    assert not [warning for warning in warnings_of(plain) if "held out:" in warning]


SPLIT_OFF = "name held-out rows in data.eval, or raise data.eval_fraction"
CUT = "data.eval has only 5 held-out rows with data.max_rows = 5"
MORE = "name more of them in data.eval"


@pytest.mark.parametrize(
    ("data", "held", "counted", "fix"),
    [
        ({"train": "a"}, 5, "only 5 of 15 rows are held out", SPLIT_OFF),
        ({"train": "a"}, 1, "only 1 of 11 rows is held out", SPLIT_OFF),
        ({"train": "a", "part": "1/3"}, 5, "only 5 rows are held out", SPLIT_OFF),
        ({"train": "a", "eval": "b"}, 5, "data.eval has only 5 held-out rows", MORE),
        ({"train": "a", "eval": ["b", "c"]}, 1, "data.eval has only 1 held-out row", MORE),
        ({"train": "a", "eval": "b", "part": "1/3", "max_rows": 6}, 5, "data.eval has only 5 held-out rows", MORE),
        ({"train": "task:copy"}, 5, "task:copy has only 5 held-out rows", MORE),
        ({"train": "a", "eval": "b", "max_rows": 5}, 5, CUT, "raise data.max_rows"),
    ],
)
def test_few_held_out_rows_are_counted_and_mended_where_they_come_from(data, held, counted, fix):
    config = load_config({"model": "tiny:copy", "algorithm": "sft", "data": data, "train": {"steps": 1}}).config
    (said,) = few_heldout_notes(config, Split([Row({}, "a:1")] * 10, [Row({}, "b:1")] * held))
    assert said.startswith(f"{counted}: their score may be off by ")
    assert said.endswith(f"; {fix}")


@pytest.mark.slow
def test_a_run_warns_once_of_pictures_that_the_model_does_not_see(folder, plain):
    rows = [json.loads(line) | {"images": ["x.png"]} for line in (folder / "prompts.jsonl").read_text().splitlines()]
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(folder, "pictures", **{"data.train": str(folder / "pictures.jsonl"), "train.steps": 1})
    (said,) = [warning for warning in warnings_of(run) if "does not see" in warning]
    assert said.startswith("the column images holds values that the model does not see")
    assert not [warning for warning in warnings_of(plain) if "does not see" in warning]


@pytest.mark.slow
def test_forgetting_is_measured_without_held_out_prompts(folder):
    settings = {"data.eval_fraction": 0.0, "evaluation.forgetting": str(folder / "text.txt")}
    run = train(folder, "forgetting", **settings)
    assert run.evaluation["forgetting"].keys() == {"baseline_loss", "trained_loss"}
    assert any("improvement cannot be measured" in warning for warning in warnings_of(run))


def test_the_largest_seed_is_a_seed(folder):
    assert train(folder, "large-seed", seed=2**63 - 1).step == 2


@pytest.mark.slow
def test_several_updates_without_a_ratio_are_told_and_their_metrics_are_true(folder):
    run = train(folder, "updates", algorithm="reinforce", **{"train.minibatches": 2, "train.learning_rate": 0.05})
    assert any("no importance ratio" in warning for warning in warnings_of(run))
    assert run.metrics[0]["policy/approx_kl_k3"] > 1e-6, "the policy moved between the two updates of a batch"
    assert run.metrics[0]["sampling/sampling_logp_difference/max"] < 1e-4, "learning is not a mismatch"


def test_a_single_update_needs_no_old_pass_and_has_a_ratio_of_one(plain):
    assert plain.metrics[0]["policy/ratio_max"] == 1.0
    assert not any("no importance ratio" in warning for warning in warnings_of(plain))


@pytest.fixture(scope="module")
def adapted(folder):
    """A run with adapters, for tests that read it or copy its folder."""
    return train(folder, "lora", lora={"rank": 2, "alpha": 8})


def test_a_checkpoint_of_another_model_is_refused_by_name(folder, adapted):
    checkpoint = adapted.checkpoints.newest()
    assert checkpoint is not None
    saved, _ = load_state(checkpoint.state)
    assert all("lora" in name for name in saved["policy"])
    with pytest.raises(CheckpointError, match="holds other trained weights than this model has"):
        train(folder, "whole", **{"train.steps": 1}).restore(checkpoint)


def test_tokens_are_counted_with_their_prompts(plain):
    counted = [row["num_tokens"] for row in plain.metrics]
    completions = 8 * plain.metrics[0]["completions/mean_length"]
    assert counted[0] > completions
    assert counted[1] > counted[0]


def test_training_moves_the_weights(folder, plain):
    start = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    trained = plain.trainer.loaded.model.state_dict()
    assert any(not torch.equal(tensor, start[name]) for name, tensor in trained.items())


@pytest.mark.slow
def test_a_resumed_run_keeps_the_dropout_of_the_adapters_out_of_the_old_pass(folder):
    """With two updates per batch the old pass comes first, and must see the policy that sampled.

    A fresh adapter adds nothing, with or without dropout, so only a resumed run can show the fault.
    """
    settings = {"train.minibatches": 2, "train.steps": 1, "train.learning_rate": 0.05}
    run = posttrain.resume(train(folder, "dropout", lora={"rank": 4, "dropout": 0.5}, **settings).folder, steps=2)
    assert [row["step"] for row in run.metrics] == [1, 2]
    assert run.metrics[1]["sampling/sampling_logp_difference/max"] < 1e-5


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("alpha: 8 ", "alpha: 80 ", r"adapters in .* trained with another scale: lora.alpha was 8 and is 80"),
        pytest.param(
            "rank: 2 ",
            "rank: 4 ",
            r"other trained weights than this model has: .* is \[2, .*\] there and \[4, ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_is_not_resumed_with_other_adapters_than_it_has_trained(adapted, tmp_path, before, after, message):
    """With another alpha the same weights are another model, and no other check would notice."""
    run = shutil.copytree(adapted.folder, tmp_path / "run")
    config = run / "config.yaml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    with pytest.raises(CheckpointError, match=message):
        posttrain.resume(run, steps=3)
    config.write_text(config.read_text().replace(after, before))
    assert posttrain.resume(run, steps=3).step == 3


@pytest.mark.parametrize(
    ("settings", "role"),
    [
        pytest.param({"lora": {"rank": 2}}, "which is the base of its adapters", marks=pytest.mark.slow),
        ({"algorithm": {"name": "grpo", "kl_coef": 0.1}}, "which is its reference"),
    ],
)
def test_a_run_is_not_resumed_on_another_model_than_it_was_started_with(folder, tmp_path, settings, role):
    """The model's folder was rewritten: adapters would sit on other weights, a reference would score differently."""
    start = tiny_model(tmp_path / "start")
    original = (start / "model.safetensors").read_bytes()
    run = train(folder, f"start-{role[-8:]}", model=str(start), **settings)
    tiny_model(start, seed=5)
    with pytest.raises(ModelError, match=f"holds another model than the run started with, {role}"):
        posttrain.resume(run.folder, steps=3)
    moved = tmp_path / "moved"
    start.rename(moved)
    (moved / "model.safetensors").write_bytes(original)
    config = run.folder / "config.yaml"
    config.write_text(config.read_text().replace(str(start), str(moved)))
    assert posttrain.resume(run.folder, steps=3).step == 3


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        pytest.param("reference", {"algorithm": {"name": "grpo", "kl_coef": 0.1}}, marks=pytest.mark.slow),
        ("teacher", {"algorithm": "distillation", "rewards": []}),
        pytest.param("reference", {"algorithm": "dpo", "rewards": [], "data.train": "pairs.jsonl"}, id="given answers"),
    ],
)
def test_a_run_is_not_resumed_beside_another_reference_or_teacher(folder, tmp_path, section, settings):
    beside = tiny_model(tmp_path / "beside", seed=3)
    pairs = [{"prompt": word, "chosen": word[::-1], "rejected": word} for word in ("abc", "bcd", "cde", "def")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    settings = {name: str(tmp_path / "pairs.jsonl") if name == "data.train" else it for name, it in settings.items()}
    original = (beside / "model.safetensors").read_bytes()
    run = train(folder, f"beside-{section}-{len(settings)}", **{section: str(beside)}, **settings)
    tiny_model(beside, seed=5)
    with pytest.raises(
        ModelError, match=rf"^{section}\.path = .* holds another model than the run started with"
    ) as error:
        posttrain.resume(run.folder, steps=3)
    assert error.value.__notes__ == [f"The run is in {run.folder}."], "to resume it again would not help"
    start = json.loads((run.folder / "start.json").read_text())
    assert start.keys() == {"sha256", section}
    (beside / "model.safetensors").write_bytes(original)
    assert posttrain.resume(run.folder, steps=3).step == 3


@pytest.mark.slow
def test_a_run_of_an_earlier_version_is_resumed_beside_any_reference_and_then_keeps_it(folder, tmp_path):
    beside = tiny_model(tmp_path / "beside", seed=3)
    run = train(folder, "beside-old", algorithm={"name": "grpo", "kl_coef": 0.1}, reference=str(beside))
    start = json.loads((run.folder / "start.json").read_text())
    del start["reference"]
    (run.folder / "start.json").write_text(json.dumps(start))
    (run.folder / ".start.json.sha256").unlink()
    tiny_model(beside, seed=5)
    assert posttrain.resume(run.folder, steps=3).step == 3
    tiny_model(beside, seed=6)
    with pytest.raises(ModelError, match=r"^reference\.path"):
        posttrain.resume(run.folder, steps=4)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({1, 2, 3, 4}, ""),
        ({1, 4}, "lacks 2 of the 4 steps before this checkpoint, between 2 and 3: "),
        pytest.param(
            {3, 4}, "lacks 2 of the 4 steps before this checkpoint, between 1 and 2: ", marks=pytest.mark.slow
        ),
        ({1, 2, 3}, "lacks 1 of the 4 steps before this checkpoint, between 4 and 4: "),
        pytest.param(set(), "lacks 4 of the 4 steps before this checkpoint, between 1 and 4: ", marks=pytest.mark.slow),
    ],
)
def test_rows_that_a_power_failure_lost_are_missed_when_the_run_is_resumed(folder, tmp_path, four_steps, kept, told):
    copy = tmp_path / "run"
    shutil.copytree(four_steps, copy)
    rows = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(row for row in rows if json.loads(row)["step"] in kept))
    posttrain.resume(copy, steps=5)
    events = [json.loads(line) for line in (copy / "events.jsonl").open()]
    warnings = [event["message"] for event in events if event["kind"] == "warning" and event.get("about") == "metrics"]
    assert len(warnings) == bool(told)
    assert all(told in warning for warning in warnings)


@pytest.fixture(scope="module")
def four_steps(folder):
    return train(folder, "four-steps", **{"train.steps": 4}).folder


def test_rows_and_events_are_on_disk_before_the_checkpoint_that_needs_them(folder, monkeypatch):
    order = []
    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, *a, **k: (order.append("checkpoint"), save(self, *a, **k))[1])
    monkeypatch.setattr(run_store, "sync", lambda path: path.exists() and order.append(path.name))
    train(folder, "settled", **{"train.steps": 1})
    assert order == ["events.jsonl", "checkpoint", "metrics.jsonl", "events.jsonl", "checkpoint"]


def failing_sync(monkeypatch, number, name, calls):
    """Let the given calls of fsync for the file of that name fail."""
    made, sync = [], run_store.sync

    def fails(path):
        if path.name == name and path.exists():
            made.append(path)
            if len(made) in calls:
                raise OSError(number, os.strerror(number))
        sync(path)

    monkeypatch.setattr(run_store, "sync", fails)


@pytest.mark.parametrize(
    ("number", "name", "calls", "steps"),
    [
        (errno.EIO, "metrics.jsonl", {1, 2}, [0, 3, 4]),
        (errno.EIO, "events.jsonl", {2, 4}, [0, 2, 4]),
        (errno.ENOSPC, "metrics.jsonl", {1, 3}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_run_outlives_records_that_a_disk_does_not_take(folder, monkeypatch, tmp_path, number, name, calls, steps):
    """Each is a checkpoint that was not saved; for space the run waits."""
    monkeypatch.setattr(PATIENCE, "seconds", 1.0)
    monkeypatch.setattr(PATIENCE, "interval", 0.0)
    failing_sync(monkeypatch, number, name, calls)
    output = str(tmp_path / "run")
    run = train(folder, "", **{"output": output, "train.steps": 4, "checkpoint.every": 1, "checkpoint.keep": 9})
    assert run.step == 4
    assert run.checkpoints.steps() == steps
    told = [warning for warning in warnings_of(run) if "failures in a row" in warning]
    assert len(told) == 5 - len(steps)
    assert all(f"{name}'" in warning for warning in told)


@pytest.mark.parametrize(
    ("number", "code", "calls", "told"),
    [
        (errno.EIO, 1, {1, 2, 3}, "3 checkpoints in a row"),
        (errno.ENOSPC, 3, {4}, "of step 4 could not"),
        pytest.param(errno.ENOSPC, 3, {1, 2, 3}, "3 checkpoints in a row", marks=pytest.mark.slow),
        pytest.param(errno.EIO, 1, {4}, "of step 4 could not", marks=pytest.mark.slow),
    ],
)
def test_records_that_fail_for_long_or_at_the_end_end_the_run(folder, monkeypatch, tmp_path, number, code, calls, told):
    monkeypatch.setattr(PATIENCE, "seconds", 0.0)
    failing_sync(monkeypatch, number, "metrics.jsonl", calls)
    with pytest.raises(CheckpointError, match=f"{told}.*metrics.jsonl'") as raised:
        train(folder, "", **{"output": str(tmp_path / "run"), "train.steps": 4, "checkpoint.every": 1})
    assert raised.value.exit_code == code


@pytest.mark.slow
def test_a_run_of_which_all_comes_from_the_checkpoint_asks_for_no_more_of_its_start(folder, tmp_path):
    start = tiny_model(tmp_path / "start")
    run = train(folder, "start-alone", model=str(start))
    tiny_model(start, seed=5)
    assert posttrain.resume(run.folder, steps=3).step == 3


def test_a_run_that_learns_nothing_though_rewards_differ_is_warned_of_and_stopped(folder):
    """No answer reaches the threshold at which pass@k counts it as right: all advantages are 0."""
    with pytest.raises(GuardStop, match=r"gradient is exactly 0.*; this is step 2 of this kind in a row"):
        train(
            folder,
            "unmoved",
            algorithm={"name": "pass_at_k", "k": 2, "correct_at": 9.0},
            **{"train.steps": 5, "guards.no_signal_steps": 2},
        )
    events = (folder / "unmoved" / "events.jsonl").read_text()
    assert "step 1: the gradient is exactly 0" in events


def test_a_run_in_which_every_answer_is_left_out_of_the_loss_is_stopped(folder):
    def letters(completions, **columns):
        return [sum(map(str.isalpha, completion)) for completion in completions]

    settings = {"train.mask_truncated": True, "train.steps": 5, "guards.no_signal_steps": 2}
    with pytest.raises(
        GuardStop, match=r"no answer was trained on.*(.|\n)*train.mask_truncated leaves out truncated answers"
    ):
        train(folder, "masked", rewards=letters, **settings, **{"sampling.max_completion_length": 1})


def test_a_column_that_one_row_has_is_there_in_every_step(folder):
    rows = [{"prompt": f"say {letter}"} | ({"tag": 4} if letter == "c" else {}) for letter in "abcdefgh"]
    (folder / "ragged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tagged.py").write_text(
        "def tagged(prompts, completions, tag, **columns):\n"
        "    assert len(tag) == len(prompts) and set(tag) <= {None, 4}\n"
        "    return [len(set(text)) / 8 for text in completions]\n"
    )
    rewards = [{"function": f"{folder / 'tagged.py'}:tagged"}]
    run = train(
        folder, "ragged", rewards=rewards, **{"data.train": str(folder / "ragged.jsonl"), "data.eval_fraction": 0.25}
    )
    assert run.step == 2
    assert [row["unscored_fraction"] for row in run.metrics] == [0.0, 0.0]


@pytest.mark.slow
def test_a_function_of_one_row_keeps_its_default_where_the_row_lacks_the_column(folder):
    rows = [{"prompt": f"say {letter}"} | ({"scale": 2.0} if letter in "ce" else {}) for letter in "abcdefgh"]
    (folder / "scaled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scaled.py").write_text(
        "def scaled(prompt, completion, scale=1.0):\n    return scale * len(set(completion)) / 16\n"
    )
    rewards = [{"function": f"{folder / 'scaled.py'}:scaled"}]
    run = train(folder, "scaled", rewards=rewards, **{"data.train": str(folder / "scaled.jsonl"), "train.steps": 4})
    assert [row["unscored_fraction"] for row in run.metrics] == [0.0] * 4


@pytest.mark.slow
def test_a_loss_that_has_reached_its_margin_goes_on_to_the_end(folder):
    """The hinge then has no gradient, because its pairs are learned."""
    pairs = [{"prompt": "a", "chosen": f"b{n}", "rejected": f"c{n}"} for n in range(4)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    config = {
        "model": str(folder / "model"),
        "algorithm": {"name": "hinge", "beta": 1.0},
        "data": {"train": str(folder / "pairs.jsonl"), "eval": str(folder / "pairs.jsonl")},
        "train": {"steps": 60, "prompts_per_step": 4, "learning_rate": 0.02},
        "guards": {"no_signal_steps": 2},
        "output": str(folder / "hinge"),
        "report": False,
    }
    run = posttrain.train(config)
    assert [row["grad_norm"] for row in run.metrics][-3:] == [0.0] * 3
    assert run.step == 60
