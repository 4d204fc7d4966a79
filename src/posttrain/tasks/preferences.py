"""Preference pairs of a built-in task: the right answer, and the same answer with mistakes in it."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Any

from posttrain.tasks.base import Task

MOST_MISTAKES = 3


@dataclass(frozen=True, kw_only=True)
class PreferenceTask:
    """`task:pairs/NAME`: the problems of a task with a chosen and a rejected answer."""

    task: Task

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt, chosen, rejected and answer: a pure function of the arguments."""
        dice = random.Random(f"pairs/{self.task.name}:{self.task.difficulty}/{split}/{seed}")
        return [
            {**row, "chosen": row["answer"], "rejected": with_mistakes(row["answer"], dice)}
            for row in self.task.rows(n, seed=seed, split=split)
        ]


def with_mistakes(answer: str, dice: random.Random) -> str:
    """The answer after one to three slips of the pen; never the answer itself.

    >>> with_mistakes("abcd", random.Random(0))
    'abad'
    """
    wrong = answer
    while wrong == answer or not wrong:
        wrong = answer
        for _ in range(dice.randint(1, MOST_MISTAKES)):
            wrong = _slip(wrong, dice)
    return wrong


def _slip(text: str, dice: random.Random) -> str:
    """One character replaced by another of its kind, swapped with its neighbour, left out or written twice."""
    place = dice.randrange(len(text)) if text else 0
    before, at, after = text[:place], text[place : place + 1], text[place + 1 :]
    kind = dice.choice(("replace", "replace", "swap", "leave out", "double"))
    if kind == "swap" and after:
        return before + after[0] + at + after[1:]
    if kind == "leave out":
        return before + after
    if kind == "double":
        return before + 2 * at + after
    return before + dice.choice(string.digits if at.isdigit() else string.ascii_lowercase[:10]) + after
