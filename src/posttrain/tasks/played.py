"""Tasks with several turns as rows for `data`: the tasks of verifiers, and seeds for Gymnasium.

data: {train: task:verifiers/wordle}                environment: verifiers:wordle
data: {train: task:gymnasium/FrozenLake-v1}         environment: gymnasium:FrozenLake-v1
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posttrain.episodes.adapters.verifiers import find_played
from posttrain.errors import ConfigError, DataError
from posttrain.tasks.base import PATIENCE, split_of

if TYPE_CHECKING:
    from posttrain.episodes.adapters.played import Played


@dataclass(frozen=True, kw_only=True)
class PlayedTask:
    """The tasks of a verifiers environment with default settings, as a `RowSource`."""

    name: str
    played: Played

    @staticmethod
    def named(name: str) -> PlayedTask:
        """Find the environment. Raises `DataError` if verifiers or the environment is missing."""
        try:
            return PlayedTask(name=name, played=find_played(name, {}))
        except ConfigError as error:
            raise DataError(given=error.given, allowed=error.allowed, fix=error.fix) from error

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """The first `n` different tasks of a split, or fewer if there are fewer, in the order of the environment.

        The text of the prompt decides to which split a task belongs, as for the built-in tasks. `seed` has no effect.
        """
        found: dict[str, dict[str, Any]] = {}
        for row in self._of_split(split):
            if len(found) == n:
                break
            found.setdefault(str(row), dict(row))
        if not found:
            raise DataError(
                given=f"no task of the environment {self.name!r} falls into the split {split}",
                allowed="environments with some tens of tasks, of which a fifth is held out",
                fix="Use an environment with more tasks. If only held-out rows are missing, set data.eval.",
            )
        return list(found.values())

    def _of_split(self, split: str) -> Iterator[Mapping[str, Any]]:
        misses = 0
        for row in self.played.rows():
            misses = 0 if split_of(str(row["prompt"])) == split else misses + 1
            if misses > PATIENCE:
                return
            if not misses:
                yield row


@dataclass(frozen=True, kw_only=True)
class GymnasiumTask:
    """Initial states of one Gymnasium environment, as a `RowSource`."""

    name: str

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows, each with a seed for `reset`. All trajectories of a group begin in the same state.

        >>> GymnasiumTask(name="Blackjack-v1").rows(1)
        [{'prompt': 'Play Blackjack-v1.', 'seed': 1677312806}]
        """
        if split not in ("train", "eval"):
            raise DataError(given=f"task gymnasium/{self.name} has no split {split!r}", allowed="train or eval")
        dice = random.Random(f"{self.name}/{split}/{seed}")
        prompt = f"Play {self.name.rpartition('/')[2].rpartition(':')[2]}."
        odd = int(split == "eval")  # no seed is in both splits
        return [{"prompt": prompt, "seed": 2 * dice.randrange(2**30) + odd} for _ in range(n)]
