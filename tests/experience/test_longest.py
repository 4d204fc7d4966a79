"""The longest rows of a step: a run tries at its start whether they fit in memory."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.config import RunConfig
from posttrain.experience.feed import PromptFeed
from posttrain.types import Prompt

TURNS = {"environment": {"function": "game.py:Game"}}


def longest(context: int | None = None, **config: Any) -> int:
    sampling = {"group_size": 2, "max_completion_length": 5, **config.pop("sampling", {})}
    found = RunConfig(
        **{
            "model": "m",
            "algorithm": "grpo",
            "data": {"train": "d"},
            "rewards": ["length"],
            "train": {"steps": 1, "prompts_per_step": 2},
            "sampling": sampling,
            **config,
        }
    )
    prompts = [Prompt(index=place, ids=(1,) * (place + 1), text="") for place in range(3)]
    tokens = PromptFeed(found, prompts, pad_id=0, context_length=context).longest().tokens
    assert tokens is not None
    return int(tokens.lengths_B.max())


@pytest.mark.parametrize(
    ("context", "sampling", "expected"),
    [
        (None, {"max_turns": 4}, 3 + 4 * 5),
        (None, {"max_turns": 4, "max_trajectory_length": 11}, 3 + 11),
        (None, {"max_turns": 1000, "max_trajectory_length": 90}, 3 + 90),
        (16, {"max_turns": 4}, 16),
        (16, {"max_turns": 4, "max_trajectory_length": 90}, 16),
    ],
)
def test_a_trajectory_is_as_long_as_its_limits_allow(context: int | None, sampling: dict[str, int], expected: int):
    """After a prompt of three tokens: the tokens of all turns, or the limit of the trajectory; at most the context."""
    assert longest(context, sampling=sampling, **TURNS) == expected


def test_an_answer_is_as_long_as_one_turn():
    assert longest() == 3 + 5
