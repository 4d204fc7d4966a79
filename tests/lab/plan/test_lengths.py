"""If the data is here, a plan reads the lengths of rows from it instead of assuming them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.config import load_config
from posttrain.data.read import missing_files
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.workload import MOST_ROWS, row_lengths

SHORT, LONG = "abc:", "abcdefghi:"
"""Prompts of 4 and 10 tokens, one per character. BOS precedes them, and EOS follows an answer."""
KINDS: dict[str, tuple[str, list[dict[str, Any]], tuple[int, int]]] = {
    "prompts": ("grpo", [{"prompt": SHORT}, {"prompt": LONG}], (11, 0)),
    "examples": ("sft", [{"prompt": SHORT, "completion": "xyz"}, {"prompt": LONG, "completion": "x"}], (9, 4)),
    "pairs": ("dpo", [{"prompt": SHORT, "chosen": "xyzxyz", "rejected": "x"}] * 2, (5, 7)),
    "labels": ("kto", [{"prompt": SHORT, "completion": word, "label": word == "x"} for word in ("x", "yz")], (5, 3)),
    "ratings": ("reward_regression", [{"prompt": SHORT, "completion": "xy", "score": n} for n in (1.0, 2.0)], (5, 3)),
    "steps": (
        "process_reward_model",
        [{"prompt": SHORT, "completions": ["x", "y"], "labels": [True, False]}] * 2,
        None,
    ),
}  # type: ignore[dict-item]
"""Kind of data -> an algorithm that learns from it, rows, and (prompt, completion) of the longest row."""


def config(folder: Path, algorithm: str, rows: list[dict[str, Any]], **changes: Any) -> Any:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base: dict[str, Any] = {
        "model": "tiny:sort",
        "algorithm": algorithm,
        "data": {"train": str(file), "eval_fraction": 0.0, "chat": False},
        "train": {"steps": 2, "prompts_per_step": 2},
        "sampling": {"max_completion_length": 12},
    }
    rewards = {"rewards": [{"name": "exact_match"}]} if algorithm == "grpo" else {}
    return load_config(base | rewards, changes).config


def test_rows_of_every_kind_are_as_long_as_a_run_makes_them(tmp_path):
    for kind, (algorithm, rows, longest) in KINDS.items():
        found = row_lengths(config(tmp_path, algorithm, rows))
        assert found is not None, kind
        assert (found.rows, found.whole, found.heldout) == (2, True, 0), kind
        if longest is not None:
            assert (found.prompt, found.completion) == longest, kind
        assert found.mean_prompt + found.mean_completion <= found.prompt + found.completion, kind


def test_a_plan_counts_the_rows_that_there_are_and_says_so(tmp_path):
    algorithm, rows, (prompt, completion) = KINDS["pairs"]
    made = config(tmp_path, algorithm, rows)
    plan = make_plan(made)
    assert (plan.workload.prompt_tokens, plan.workload.completion_tokens) == (prompt, completion)
    assert plan.step.tokens == 2 * 2 * (prompt + completion)
    assert "rows of up to 12 tokens (9 on average), as in all 2 rows of the data" in plan.render()
    elsewhere = make_plan(load_config(made, {"data.train": "no-such-file.jsonl"}).config)
    assert elsewhere.step.tokens > 10 * plan.step.tokens
    assert elsewhere.step_seconds >= plan.step_seconds
    assert "because there is no file no-such-file.jsonl on this machine" in " ".join(elsewhere.render().split())


@pytest.mark.parametrize(
    ("train", "missing"),
    [
        (["there.jsonl", "gone.jsonl"], ["gone.jsonl"]),
        (["gone-*.jsonl", "there*"], ["gone-*.jsonl"]),
        ("gone.csv.gz", ["gone.csv.gz"]),
        ("task:sort", []),
        ("org/dataset", []),
        ("org/dataset:config", []),
    ],
)
def test_a_plan_names_the_files_that_do_not_exist(tmp_path, monkeypatch, train, missing):
    (tmp_path / "there.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert missing_files(train) == missing


@pytest.mark.parametrize("setting", ["data.max_length", "data.max_prompt_length"])
def test_lengths_in_the_settings_do_not_hide_a_missing_file(tmp_path, setting):
    algorithm, rows, _ = KINDS["prompts" if "prompt" in setting else "pairs"]
    made = load_config(config(tmp_path, algorithm, rows), {"data.train": "gone.jsonl", setting: 64}).config
    shown = " ".join(make_plan(made).render().split())
    assert "rows of the maximum length that the settings allow; there is no file gone.jsonl on this machine" in shown


def test_what_is_dropped_counts_for_nothing(tmp_path):
    rows = [{"prompt": SHORT, "completion": "x" * n} for n in (3, 40)]
    found = row_lengths(config(tmp_path, "sft", rows, **{"data.max_length": 20}))
    assert found is not None
    assert found.prompt + found.completion == 9


def test_of_much_data_the_first_rows_are_read(tmp_path):
    rows = [{"prompt": SHORT, "completion": "x" * (1 + (n > MOST_ROWS))} for n in range(MOST_ROWS + 9)]
    found = row_lengths(config(tmp_path, "sft", rows))
    assert found is not None
    assert (found.rows, found.whole, found.heldout, found.completion) == (MOST_ROWS, False, None, 2)
    assert "the first 500 rows" in str(found)


@pytest.mark.parametrize("content", ["", "no json", '{"prompt": 3}\n'])
def test_data_that_cannot_be_read_is_left_to_whoever_trains(tmp_path, content):
    made = config(tmp_path, "sft", [])
    (tmp_path / "rows.jsonl").write_text(content)
    assert row_lengths(made) is None
    assert make_plan(made).step.tokens > 0
