"""Preferences whose truth is known, and about which an untrained model knows nothing.

    prompt   a word and a mark: dbcaf+ or dbcaf-
    answer   five letters; + likes those from a to e, - those from f to j
    worth    how many of its letters are liked

Both answers of a pair are drawn alike, without a look at the prompt, and the one of greater worth was chosen. So chosen
and rejected answers have the same lengths and, over both marks, the same letters: a model that does not know what the
marks mean ranks half of the pairs right, whatever else it can do.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from posttrain.tasks.base import split_of

LETTERS = string.ascii_lowercase[:10]
LIKED = {"+": frozenset(LETTERS[:5]), "-": frozenset(LETTERS[5:])}
LENGTH = 5
"""Letters of a prompt and of an answer; odd, so that an answer has more liked letters or more others."""


@dataclass(frozen=True, kw_only=True)
class TasteTask:
    """`task:pairs/taste` and `task:labels/taste`."""

    labelled: bool

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows: prompt, chosen, rejected; or prompt, completion, label (whether most of its letters are liked)."""
        dice = random.Random(f"taste/{split}/{seed}")
        prompts, make = self._prompts(dice, split), labelled_answer if self.labelled else pair
        return [make(next(prompts), dice) for _ in range(n)]

    @staticmethod
    def _prompts(dice: random.Random, split: str) -> Iterator[str]:
        while True:
            prompt = _word(dice) + dice.choice("+-")
            if split_of(prompt) == split:
                yield prompt


def worth(prompt: str, answer: str) -> int:
    """
    >>> worth("dbcaf+", "aejaf"), worth("dbcaf-", "aejaf")
    (3, 2)
    """
    return sum(letter in LIKED[prompt[-1]] for letter in answer)


def pair(prompt: str, dice: random.Random) -> dict[str, Any]:
    """Two answers of different worth, the better one chosen."""
    worse = better = ""
    while worth(prompt, worse) == worth(prompt, better):
        worse, better = sorted((_word(dice), _word(dice)), key=lambda answer: worth(prompt, answer))
    return {"prompt": prompt, "chosen": better, "rejected": worse}


def labelled_answer(prompt: str, dice: random.Random) -> dict[str, Any]:
    answer = _word(dice)
    return {"prompt": prompt, "completion": answer, "label": 2 * worth(prompt, answer) > LENGTH}


def _word(dice: random.Random) -> str:
    return "".join(dice.choices(LETTERS, k=LENGTH))
