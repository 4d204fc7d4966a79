"""Demonstrations for a built-in task: right answers, preferred answers and judgements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posttrain.sources import RowSource
from posttrain.tasks.preferences import PreferenceTask

POINTS = 5
"""Number of points for the right answer."""


@dataclass(frozen=True, kw_only=True)
class ExampleTask:
    """`task:examples/NAME`: the problems of a task, each with a good answer as the completion."""

    task: RowSource

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and completion: a pure function of the arguments."""
        rows = self.task.rows(n, seed=seed, split=split)
        return [{"prompt": row["prompt"], "completion": row["chosen" if "chosen" in row else "answer"]} for row in rows]


@dataclass(frozen=True, kw_only=True)
class JudgementTask:
    """`task:judgements/NAME`: prompts with a problem and an answer, and the points for it, as a judge gives them.

    The completion is `score: 5` for the right answer. A wrong answer gets 0 to 4 points, by the share of its characters
    that are in the right place. A small model learns such points more easily than a bare right or wrong.
    """

    task: PreferenceTask

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and completion. Right and wrong answers alternate."""
        rows = self.task.rows(n, seed=seed, split=split)
        given = [(row, row["rejected" if number % 2 else "chosen"]) for number, row in enumerate(rows)]
        return [
            {"prompt": f"{row['prompt']}{answer}:\n", "completion": f"score: {points(answer, row['answer'])}"}
            for row, answer in given
        ]


def points(answer: str, right: str) -> int:
    """Points from 0 to 5, by the share of characters in the right place. Only the right answer gets 5.

    >>> points("abcd", "abcd"), points("abdc", "abcd"), points("abcde", "abcd"), points("", "abcd")
    (5, 2, 4, 0)
    """
    if answer == right:
        return POINTS
    matches = sum(given == wanted for given, wanted in zip(answer, right, strict=False))
    return POINTS * matches // max(len(answer), len(right))
