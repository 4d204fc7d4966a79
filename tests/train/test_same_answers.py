"""The digests of what answers on file were made of: they change with what changes the answers, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experience.test_sampled_pairs import REWARDS, config, rows_of
from tests.tiny import tiny_model, write_prompts
from torch import nn

from posttrain.config import load_config
from posttrain.errors import DataError
from posttrain.train.api import resume, train
from posttrain.train.same_answers import made_of


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def digests(folder: Path, changes: dict[str, Any], model: nn.Module | None = None) -> dict[str, str]:
    return made_of(load_config(config(folder, "run"), changes).config, model or nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sampling.group_size": 8}, {"sampling"}),
        ({"sampling.temperature": 0.7}, {"sampling"}),
        ({"seed": 5}, {"sampling"}),
        ({"sampling.max_batch_rows": 3, "train.steps": 99, "sampled_pairs.min_gap": 0.5}, set()),
        ({"rewards": [{"name": "math"}]}, {"rewards"}),
    ],
)
def test_a_change_shows_where_it_changes_the_answers(folder, changes: dict[str, Any], what: set[str]):
    model = nn.Linear(2, 2)
    before, now = digests(folder, {}, model), digests(folder, changes, model)
    assert {name for name in before if before[name] != now[name]} == what


JUDGE = {"url": "http://127.0.0.1:1/v1", "model": "judge", "max_calls": 10}


@pytest.mark.parametrize(
    ("before", "after", "shows"),
    [
        ({"judge": JUDGE}, {"judge": JUDGE | {"max_calls": 20, "retries": 9, "timeout": 9.0, "cache": False}}, False),
        ({"name": "math"}, {"name": "math", "timeout": 60.0}, False),
        ({"judge": JUDGE}, {"judge": JUDGE | {"temperature": 0.5}}, True),
        ({"judge": JUDGE}, {"judge": JUDGE | {"rubric": "Prefer short answers."}}, True),
    ],
)
def test_a_larger_budget_or_timeout_changes_no_score(folder, before, after, shows):
    model = nn.Linear(2, 2)
    assert (digests(folder, {"rewards": [before]}, model) != digests(folder, {"rewards": [after]}, model)) == shows


def test_other_weights_and_an_edited_reward_show(folder):
    model = nn.Linear(2, 2)
    before = digests(folder, {}, model)
    (folder / "rewards.py").write_text(REWARDS + "# edited\n")
    with torch.no_grad():
        model.weight.add_(1)
    now = digests(folder, {}, model)
    assert {name for name in before if before[name] != now[name]} == {"model", "rewards"}


def test_what_the_error_about_missing_pairs_advises_helps_and_other_prompts_are_refused(folder):
    tiny_model(folder / "model", initializer_range=0.1)
    write_prompts(folder / "prompts.jsonl", count=20)
    given = config(folder, "run", "same")
    given["train"] |= {"steps": 1, "prompts_per_step": 4}
    with pytest.raises(DataError, match=r"18 prompts x 4 answers: 0 pairs"):
        train(given)
    part = folder / "run" / "sampled" / "part-00000.jsonl"
    sampled = [json.loads(line)["completions"] for line in part.read_text().splitlines()]
    settings, prompts = folder / "run" / "config.yaml", (folder / "prompts.jsonl").read_text()
    settings.write_text(settings.read_text().replace("rewards.py:same", "rewards.py:vowels"))
    (folder / "prompts.jsonl").write_text("".join(reversed(prompts.splitlines(keepends=True))))

    with pytest.raises(DataError, match="other prompts than the data has"):
        resume(folder / "run")
    (folder / "prompts.jsonl").write_text(prompts)
    run = resume(folder / "run")
    assert run.step == 1
    assert all(pair["parts"].keys() == {"vowels"} for pair in rows_of(run))
    assert [json.loads(line)["completions"] for line in part.read_text().splitlines()] == sampled
