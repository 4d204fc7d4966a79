"""A resumed run says which settings differ from those of its checkpoint, and continues."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.config import load_config
from posttrain.train.same_settings import changes, facts_of, rates_of


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run after its first step."""
    rows = [{"prompt": word, "completion": word} for word in "abcdefghijkl"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"path": str(tiny_model(tmp_path / "model")), "device": "cpu"},
        "algorithm": "sft",
        "data": {"train": str(tmp_path / "train.jsonl"), "eval_fraction": 0.3},
        "train": {"steps": 1, "prompts_per_step": 4},
        "evaluation": {"writing": 0},
        "output": str(tmp_path / "run"),
        "report": False,
    }
    return pt.train(config).folder


def told(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in events if event.get("about") == "settings"]


def edit(folder: Path, **settings: str) -> None:
    file = folder / "config.yaml"
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        key = line.strip().partition(":")[0]
        if key in settings:
            lines[number] = f"{line[: line.index(key)]}{key}: {settings[key]}"
    file.write_text("\n".join(lines) + "\n")


def test_what_differs_from_the_settings_of_the_checkpoint_is_said_once(begun):
    pt.resume(begun, steps=2)
    assert told(begun) == ["the settings changed after step 1: train.steps = 2 (was 1)"]
    edit(begun, learning_rate="1.0e-05", prompts_per_step="2")
    pt.resume(begun, steps=2)
    now = "train.prompts_per_step = 2 (was 4), train.learning_rate = 1e-05 (was 1e-06)"
    assert told(begun)[1:] == [f"the settings changed after step 2: {now}"]
    pt.resume(begun, steps=3)
    assert told(begun)[2:] == [f"the settings changed after step 2: train.steps = 3 (was 2), {now}"], "still unsaved"


@pytest.mark.parametrize(
    ("before", "after", "rates"),
    [
        ({"schedule": "cosine"}, {"steps": 10}, "0.000854 in step 2 and is 0.000905 in step 3"),
        ({"schedule": "linear"}, {"steps": 8}, "0.00075 in step 2 and is 0.00075 in step 3"),
        ({"schedule": "linear"}, {"steps": 2}, ""),
        ({"schedule": "linear"}, {"schedule": "constant"}, "0.00075 in step 2 and is 0.001 in step 3"),
        ({"schedule": "cosine"}, {"min_learning_rate_ratio": 0.5}, "0.000854 in step 2 and is 0.00075 in step 3"),
        ({}, {"warmup_steps": 3}, "0.001 in step 2 and is 0.00075 in step 3"),
        ({}, {"steps": 10}, ""),
        ({}, {"learning_rate": 1e-4}, ""),
        ({"schedule": "cosine"}, {"learning_rate": 1e-4}, ""),
        ({"schedule": "cosine"}, {}, ""),
    ],
)
def test_a_change_that_moves_the_learning_rate_along_its_schedule_says_both_rates(before, after, rates):
    config = load_config(
        {"model": "tiny:copy", "algorithm": "sft", "data": {"train": "task:copy"}, "train": {"steps": 4}}
    ).config
    train = config.train.model_copy(update={"learning_rate": 1e-3, **before})
    facts = facts_of(config.model_copy(update={"train": train}))
    now = train.model_copy(update=after)
    reached = "train.steps" if now.steps == 2 else ""
    said = rates_of(cast("Any", SimpleNamespace(config=SimpleNamespace(train=now), step=2, reached=reached)), facts)
    if rates:
        assert said.startswith(f". This moves the schedule: the learning rate was {rates}, and")
    else:
        assert said == ""


def test_a_resume_to_more_steps_says_what_it_does_to_the_learning_rate(begun):
    edit(begun, schedule="linear")
    pt.resume(begun, steps=2)
    (said,) = told(begun)
    assert (
        "schedule = linear (was constant). This moves the schedule: the learning rate was 1e-06 in step 1 and" in said
    )


@pytest.mark.slow
def test_a_run_of_an_earlier_version_and_a_damaged_file_say_nothing_of_settings(begun):
    for damage in (None, "[]", '{"x": 1}', "{"):
        if damage is None:
            (begun / "settings.json").unlink()
        else:
            (begun / "settings.json").write_text(damage)
        pt.resume(begun)
    assert told(begun) == []


def test_every_setting_is_compared_but_for_the_folder_what_judges_and_the_run_before():
    base = {"model": "tiny:copy", "algorithm": "grpo", "data": {"train": "task:copy"}, "train": {"steps": 3}}
    config = load_config(base | {"rewards": ["exact_match"]}).config
    assert set(config.model_dump()) - {name.partition(".")[0] for name in facts_of(config)} == {
        "rewards",
        "check",
        "output",
        "reward_model",
    }


def test_a_file_of_an_earlier_version_that_lists_the_settings_of_the_reward_model_reports_no_change_of_them():
    assert changes({"reward_model.train.steps": 3, "reward_model": None, "seed": 1}, {"seed": 2}) == [
        "seed = 2 (was 1)"
    ]
