"""Reward files, and rewards that are closed at the end of a test."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.rewards.rollouts import completion, prompt

from posttrain.rewards import RewardSet, Scores, build_rewards


@pytest.fixture
def reward_file(tmp_path: Path) -> Callable[..., str]:
    """Write a reward file; returns `path:name`, ready for a config."""

    def write(code: str, name: str = "reward", file: str = "my_rewards.py") -> str:
        path = tmp_path / file
        path.write_text(textwrap.dedent(code))
        return f"{path}:{name}"

    return write


@pytest.fixture
def built() -> Iterator[Callable[..., RewardSet]]:
    """Build rewards that are closed at the end of the test."""
    sets: list[RewardSet] = []

    def build(*rewards: object, **options: object) -> RewardSet:
        sets.append(build_rewards(rewards, **options))  # type: ignore[arg-type]
        return sets[-1]

    yield build
    for rewards in sets:
        rewards.close()


@pytest.fixture
def score(built: Callable[..., RewardSet]) -> Callable[..., Scores]:
    """Score the completions of one prompt, number 7 of its dataset, with rewards that are built for it."""

    def score(texts: Sequence[str], *rewards: object, chat: bool = False, **columns: object) -> Scores:
        return built(*rewards).score([prompt(7, chat=chat, **columns)], [[completion(text) for text in texts]])

    return score


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """The descendants of this process that were started during the test."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    def started() -> list[psutil.Process]:
        return [process for process in psutil.Process().children(recursive=True) if process.pid not in before]

    return started
