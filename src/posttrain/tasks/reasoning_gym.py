"""The tasks of reasoning-gym (extra `tasks`), under the names `task:reasoning_gym/NAME`.

Its questions are generated and checked by its own code. Rows carry where an item came from, not the item, because many
items do not survive a trip through JSON; the reward makes it again. Train with

    data: {train: task:reasoning_gym/countdown}
    rewards: [{function: posttrain.tasks.reasoning_gym.score}]
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from posttrain.errors import DataError
from posttrain.tasks.base import PATIENCE, split_of

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
SIZE = 16_384
"""Items of a generator. Some draw all of them in advance, so that this number is part of what they are."""


@dataclass(frozen=True, kw_only=True)
class ReasoningGymTask:
    """One generator of reasoning-gym with its default settings."""

    name: str

    @staticmethod
    def named(name: str) -> ReasoningGymTask:
        """Raises `DataError` when reasoning-gym is not installed or has no generator of that name."""
        names = _names()
        if name not in names:
            raise DataError(
                given=f"reasoning-gym has no generator {name!r}", allowed=", ".join(names), fix="Correct the name."
            )
        return ReasoningGymTask(name=name)

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` different questions; which split one belongs to is decided by its text, as for the built-in tasks."""
        found: dict[str, dict[str, Any]] = {}
        misses = 0
        for index in range(SIZE):
            if len(found) == n or misses == PATIENCE:
                break
            item = _item(self.name, seed, index)
            question = item["question"]
            if split_of(question) == split and question not in found:
                origin = {"name": self.name, "seed": seed, "index": index}
                found[question] = {"prompt": question, "answer": item["answer"], "reasoning_gym": origin}
                misses = 0
            else:
                misses += 1
        if len(found) < n:
            raise DataError(
                given=f"{n} {split} rows of reasoning_gym/{self.name}, which has no more than {len(found)} different",
                allowed=f"up to {len(found)} rows",
                fix=f"Set data.max_rows = {len(found)}.",
            )
        return list(found.values())


def score(completion: str, reasoning_gym: dict[str, Any]) -> float:
    """A reward: reasoning-gym's own score, 0 to 1, of what stands in the last <answer> tags, else of all the text."""
    tagged = ANSWER.findall(completion)
    answer = (tagged[-1] if tagged else completion).strip()
    item = _item(reasoning_gym["name"], reasoning_gym["seed"], reasoning_gym["index"])
    return float(_generator(reasoning_gym["name"], reasoning_gym["seed"]).score_answer(answer, item))


@functools.lru_cache(maxsize=8192)
def _item(name: str, seed: int, index: int) -> dict[str, Any]:
    return _generator(name, seed)[index]


@functools.lru_cache(maxsize=64)
def _generator(name: str, seed: int) -> Any:
    _names()
    import reasoning_gym  # pyright: ignore[reportMissingImports]

    return reasoning_gym.create_dataset(name, seed=seed, size=SIZE)


def _names() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(
            given=f"task:reasoning_gym/... needs the package reasoning-gym ({error})",
            allowed="the built-in tasks without it",
            fix='pip install "posttrain[tasks]"',
        ) from None
    return sorted(DATASETS)
