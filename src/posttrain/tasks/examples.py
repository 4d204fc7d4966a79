"""Examples of a built-in task: right answers to imitate, preferred ones, and judged ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posttrain.sources import RowSource
from posttrain.tasks.preferences import PreferenceTask

POINTS = 5
"""Points of the right answer."""


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
    """`task:judgements/NAME`: a problem and an answer to it, to be followed by points, as a judge is asked for them.

    The reply is `score: 5` for the right answer, and for a wrong one 0 to 4 by the share of its characters that are
    in the right place: points that a small model can learn to give, one by one, where right or wrong is too little.
    """

    task: PreferenceTask

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and completion, right and wrong answers in turn."""
        rows = self.task.rows(n, seed=seed, split=split)
        given = [(row, row["rejected" if number % 2 else "chosen"]) for number, row in enumerate(rows)]
        return [
            {"prompt": f"{row['prompt']}{answer}:\n", "completion": f"score: {points(answer, row['answer'])}"}
            for row, answer in given
        ]


def points(answer: str, right: str) -> int:
    """0 to 5: the share of the characters that stand in the right place; 5 for the right answer alone.

    >>> points("abcd", "abcd"), points("abdc", "abcd"), points("abcde", "abcd"), points("", "abcd")
    (5, 2, 4, 0)
    """
    if answer == right:
        return POINTS
    matches = sum(given == wanted for given, wanted in zip(answer, right, strict=False))
    return POINTS * matches // max(len(answer), len(right))
