"""Whole runs with rewards for programs: each names its sandbox, and each warns of `unsafe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_model

import posttrain
from posttrain.errors import DataError
from posttrain.verify.sandbox import UNSAFE

ROWS = [{"prompt": f"add {n}", "test_list": [f"assert f(1) == {1 + n}"]} for n in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    tiny_model(folder / "model", characters="abdef012345678 ")
    write(folder / "rows.jsonl", ROWS)
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def config_of(folder: Path, output: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "rows.jsonl"), "eval_fraction": 0.25},
        "rewards": [{"name": "code"}],
        "sampling": {"group_size": 2, "max_completion_length": 4},
        "train": {"steps": 1, "prompts_per_step": 2},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / output),
    } | changes


def events_of(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [(event["kind"], event["message"]) for event in map(json.loads, lines)]


@pytest.mark.slow
def test_the_sandbox_that_was_chosen_is_told(folder: Path):
    posttrain.train(config_of(folder, "auto", check=[{"name": "code", "label": "other"}]))
    told = [message for kind, message in events_of(folder / "auto") if kind == "data" and "sandbox" in message]
    assert [message.partition(":")[0] for message in told] == ['reward "code"', 'reward "other"']
    assert all(message.endswith(("sandbox bubblewrap", "sandbox landlock")) for message in told)
    assert not [message for kind, message in events_of(folder / "auto") if kind == "warning" and "sandbox" in message]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sandbox")
def test_unsafe_is_warned_of_in_each_run_on_file_and_in_the_report(folder: Path):
    for name in ("first", "second"):
        rewards = [{"name": "code", "settings": {"sandbox": "unsafe"}}]
        posttrain.train(config_of(folder, name, rewards=rewards))
        events = events_of(folder / name)
        assert ("warning", f'reward "code": {UNSAFE}') in events
        assert ("data", 'reward "code": programs are run in the sandbox unsafe') in events
        assert "nothing is confined" in (folder / name / "report.html").read_text()


@pytest.mark.slow
def test_rows_in_the_form_of_verl_are_judged_by_their_ground_truth(folder: Path):
    truth = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    rows = [{"prompt": f"add {n}", "reward_model": {"style": "rule", "ground_truth": truth}} for n in range(8)]
    write(folder / "verl.jsonl", rows)
    data = {"train": str(folder / "verl.jsonl"), "eval_fraction": 0.25}
    posttrain.train(config_of(folder, "verl", data=data))
    assert any("sandbox" in message for _, message in events_of(folder / "verl"))


def test_rows_whose_tests_cannot_be_read_end_the_run_before_it_starts_and_are_named(folder: Path):
    write(folder / "broken.jsonl", [*ROWS, {"prompt": "add 9", "test_list": ["assert f("]}])
    with pytest.raises(
        DataError, match=r'reward "code" cannot use the gold answer of broken.jsonl:9: a test that is not Python'
    ):
        posttrain.train(
            config_of(folder, "broken", data={"train": str(folder / "broken.jsonl"), "eval_fraction": 0.25})
        )
