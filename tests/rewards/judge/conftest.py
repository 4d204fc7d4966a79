"""Judges that send requests to a local server, and keep its replies in the folder of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.rewards.judge.server import Server, serving
from tests.rewards.rollouts import completion, prompt

from posttrain.rewards import Reward, RewardSet, Scores, build_rewards
from posttrain.rewards.judge import endpoint


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Give each test its own cache, so that no test gets the replies of another."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.01)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as judge:
        yield judge


@pytest.fixture
def judged(server) -> Iterator[Callable[..., RewardSet]]:
    """Rewards with one judge at the server, built with these settings."""
    sets: list[RewardSet] = []

    def build(**settings: Any) -> RewardSet:
        judge = {"model": "judge", "url": server.url, **settings}
        sets.append(build_rewards([Reward(judge=judge)]))
        return sets[-1]

    yield build
    for rewards in sets:
        rewards.close()


@pytest.fixture
def score(judged) -> Callable[..., Scores]:
    """Score the completions of one prompt, number 7 of its dataset."""

    def score(texts: Sequence[str], *, columns: dict[str, Any] | None = None, **settings: Any) -> Scores:
        rewards = judged(**settings)
        return rewards.score([prompt(7, **(columns or {}))], [[completion(text) for text in texts]])

    return score
