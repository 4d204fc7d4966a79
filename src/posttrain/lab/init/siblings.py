"""Rows of the example `siblings`: how many sisters does a girl's brother have? (AIW, arXiv:2406.02061)

He has one more than she has, because she is one of them. The rows are the same each time. The held-out questions have
pairs of numbers (sisters, brothers) that no training row has, so that memorising does not help.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.verify import read_table

Row = dict[str, Any]
MOST = 6
"""Most sisters and most brothers of the girl, who has at least one of each. The answers are 2 to 7."""
HELD_OUT = 2
"""For each number of sisters, this many numbers of brothers occur only in held-out questions."""
DEMONSTRATED, PLAIN = 30, 120
"""Number of questions with answers for SFT, each answer equally often, and number of unrelated prompts."""
WORDS_FILE = Path(__file__).parent / "examples/siblings/words.yaml"
WORDS = read_table(WORDS_FILE)


class Siblings(NamedTuple):
    """The rows of each data file."""

    train: list[Row]
    eval: list[Row]
    sft: list[Row]
    sft_eval: list[Row]
    plain: list[Row]
    others: list[Row]

    def files(self) -> dict[str, str]:
        return {
            f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in getattr(self, name)) for name in self._fields
        }


def siblings() -> Siblings:
    dice = random.Random("init/siblings")
    apart = {(s, b) for s in range(1, MOST + 1) for b in dice.sample(range(1, MOST + 1), HELD_OUT)}
    train, held_out = list[Row](), list[Row]()
    numbers = range(1, MOST + 1)
    for s, b in itertools.product(numbers, numbers):
        for she in WORDS["sisters"]:
            row = {"prompt": question(she, dice.choice(WORDS["brothers"]), s, b), "answer": str(s + 1)}
            (held_out if (s, b) in apart else train).append(row)
    dice.shuffle(train)
    dice.shuffle(held_out)
    shown, judged = _demonstrations(train, DEMONSTRATED), _demonstrations(held_out, 2 * DEMONSTRATED)
    asked = [form.format(subject) for form in WORDS["forms"] for subject in WORDS["subjects"]]
    plain = [{"prompt": text} for text in dice.sample(asked, PLAIN)]
    return Siblings(train, held_out, shown, judged, plain, [{"prompt": text} for text in WORDS["others"]])


def question(she: str, brother: str, sisters: int, brothers: int) -> str:
    """
    >>> question("Alice", "Tom", 3, 1)
    "Alice has 3 sisters and 1 brother. How many sisters does Alice's brother Tom have?"
    """
    has = f"{_counted(sisters, 'sister')} and {_counted(brothers, 'brother')}"
    return f"{she} has {has}. How many sisters does {she}'s brother {brother} have?"


def _demonstrations(rows: list[Row], count: int) -> list[Row]:
    """Return the first rows of each answer in turn, so that each answer occurs equally often."""
    by_answer = [[row for row in rows if row["answer"] == str(s + 1)] for s in range(1, MOST + 1)]
    chosen = itertools.chain.from_iterable(zip(*by_answer, strict=False))
    return [{"prompt": row["prompt"], "completion": row["answer"]} for row in itertools.islice(chosen, count)]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
