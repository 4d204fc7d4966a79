"""Evaluations of, and conversations with, a run in several turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.turns import write_turns

import posttrain as pt
from posttrain.evaluate.chat import ChatSession

WITH = (
    pytest.param({"tools": ["worlds.py:look"]}, marks=pytest.mark.slow),
    {"environment": "worlds.py:Guess", "rewards": ["environment"]},
)


@pytest.mark.slow
@pytest.mark.parametrize("turns", WITH, ids=["tools", "environment"])
def test_a_run_with_turns_is_evaluated_in_turns_and_talked_to_in_one(
    tmp_path: Path, monkeypatch, capsys, turns: dict[str, Any]
):
    write_turns(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text("def length(completions, **_): return [len(one) for one in completions]\n")
    run = pt.train(
        {
            "model": {"path": "talker", "device": "cpu"},
            "algorithm": "grpo",
            "data": {"train": "guesses.jsonl", "eval_fraction": 0.25},
            "rewards": [{"function": "rewards.py:length"}],
            "sampling": {"group_size": 2, "max_completion_length": 30},
            "evaluation": {"prompts": 4, "samples": 1},
            "train": {"steps": 1, "prompts_per_step": 2},
            "output": "run",
            "report": False,
            **turns,
        }
    )
    assert pt.evaluate(run.folder).prompts == 4
    capsys.readouterr()
    with ChatSession(run.folder):
        assert "A chat has no environment, tools or agent: the model answers alone." in capsys.readouterr().err
