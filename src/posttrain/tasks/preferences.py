"""Preferences for a built-in task: the right answer against one with typos or the answer to another problem."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.tasks.base import Task

MOST_MISTAKES = 3
TEN_LETTERS = string.ascii_lowercase[:10]


@dataclass(frozen=True, kw_only=True)
class PreferenceTask:
    """`task:pairs/NAME`: the problems of a task with a chosen and a rejected answer."""

    task: Task

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt, chosen, rejected and answer: a pure function of the arguments."""
        dice = random.Random(f"pairs/{self.task.name}:{self.task.difficulty}/{split}/{seed}")
        rows = self.task.rows(n, seed=seed, split=split)
        answers = [row["answer"] for row in rows]
        return [{**row, "chosen": row["answer"], "rejected": _wrong(row["answer"], answers, dice)} for row in rows]


@dataclass(frozen=True, kw_only=True)
class LabelTask:
    """`task:labels/NAME`: the problems of a task, each with one answer and a label that says whether it is right."""

    task: Task

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt, completion and label: the right or the wrong answer, evenly."""
        dice = random.Random(f"labels/{self.task.name}:{self.task.difficulty}/{split}/{seed}")
        rows = PreferenceTask(task=self.task).rows(n, seed=seed, split=split)
        labels = [dice.random() < 0.5 for _ in rows]
        return [
            {"prompt": row["prompt"], "completion": row["chosen" if label else "rejected"], "label": label}
            for row, label in zip(rows, labels, strict=True)
        ]


def _wrong(answer: str, answers: Sequence[str], dice: random.Random) -> str:
    """A wrong answer: half the time one with typos, half the time the answer to another problem, which looks right."""
    other = dice.choice(answers)
    return other if other != answer and dice.random() < 0.5 else with_mistakes(answer, dice)


def with_mistakes(answer: str, dice: random.Random) -> str:
    """The answer with one to three typos; never the answer itself.

    >>> with_mistakes("abcd", random.Random(0))
    'abcc'
    """
    wrong = answer
    while wrong == answer or not wrong:
        wrong = answer
        for _ in range(dice.randint(1, MOST_MISTAKES)):
            wrong = _slip(wrong, dice)
    return wrong


def _slip(text: str, dice: random.Random) -> str:
    """The text with one typo: a character is changed to a nearby one, replaced by its neighbour, swapped, left out or
    doubled."""
    place = dice.randrange(len(text)) if text else 0
    before, at, after = text[:place], text[place : place + 1], text[place + 1 :]
    kind = dice.choice(("mistake", "mistake", "repeat", "repeat", "swap", "leave out", "double"))
    if kind == "swap":
        return before + after[:1] + at + after[1:]
    if kind == "repeat":
        return before + (before[-1:] or after[:1] or at) + after
    if kind == "leave out":
        return before + after
    if kind == "double":
        return before + 2 * at + after
    kinds = string.digits if at.isdigit() else TEN_LETTERS
    return before + kinds[(kinds.find(at) + dice.choice((-2, -1, 1, 2))) % len(kinds)] + after
