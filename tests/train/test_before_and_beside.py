"""What a run says before and during its steps: mistakes before it computes anything, the correction, lost tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.errors import PosttrainError


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "preset": "smoke",
        "model": {"path": "tiny:sort", "device": "cpu"},
        "algorithm": {"name": "grpo"},
        "data": {"train": "task:sort", "max_rows": 64},
        "rewards": [{"name": "exact_match"}],
        "sampling": {"max_completion_length": 8},
        "train": {"steps": 1},
        "evaluation": {"writing": 0, "prompts": 4, "samples": 0},
        "output": str(folder),
        "report": False,
        **changes,
    }


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "changes",
    [{"data": {"train": "nowhere.jsonl"}}, {"check": [{"function": "nowhere.py:score"}]}],
    ids=["data", "a function"],
)
def test_a_mistake_in_the_run_is_found_before_its_reward_model_is_trained(tmp_path: Path, changes: dict[str, Any]):
    stage = {"data": {"train": "task:pairs/sort"}, "train": {"steps": 1}}
    broken = config(tmp_path / "run", rewards=[{"model": "reward_model"}], reward_model=stage, **changes)
    with pytest.raises(PosttrainError, match=r"nowhere"):
        posttrain.train(broken)
    assert not (tmp_path / "run" / "reward_model").exists()


def test_a_correction_that_rejects_nearly_everything_is_said_aloud(tmp_path: Path):
    rejecting = {"name": "grpo", "correction": {"action": "mask", "high": 1e-4}}
    run = posttrain.train(config(tmp_path / "run", algorithm=rejecting))
    assert run.metrics[0]["is/masked_fraction"] == 1
    told = [e["message"] for e in events(run.folder) if e["kind"] == "warning" and e.get("about") == "correction"]
    assert told
    assert "algorithm.correction rejects 100% of the trained tokens" in told[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "GRPO: Group Relative Policy Optimization"),
        (
            {"train": {"steps": 2, "publish_every": 2}},
            "GRPO: Group Relative Policy Optimization, correction tis (auto)",
        ),
        (
            {"algorithm": {"name": "grpo", "correction": "icepop"}},
            "GRPO: Group Relative Policy Optimization, correction icepop",
        ),
    ],
    ids=["none", "auto", "by name"],
)
def test_the_correction_that_is_applied_is_told(tmp_path: Path, changes: dict[str, Any], said: str):
    run = posttrain.train(config(tmp_path / "run", **changes))
    assert run.describe()["algorithm"] == said
