"""Preferences with known ground truth, about which an untrained model knows nothing.

    prompt   a word and a mark: dbcaf+ or dbcaf-
    answer   five letters; + likes the letters from a to e, - the letters from f to j
    worth    the number of liked letters in an answer

Both answers of a pair are drawn from the same distribution, independently of the prompt. The answer of greater worth is
chosen. Chosen and rejected answers therefore have the same lengths and, over both marks, the same letters. A model that
does not know the meaning of the marks ranks half of the pairs right, whatever else it can do.
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
"""Number of letters in a prompt's word and in an answer. It is odd, so that liked and other letters never tie."""


@dataclass(frozen=True, kw_only=True)
class TasteTask:
    """`task:pairs/taste` and `task:labels/taste`."""

    labelled: bool

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with prompt, chosen and rejected, or with prompt, completion and label (are most letters liked?)."""
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
    """The number of liked letters in an answer.

    >>> worth("dbcaf+", "aejaf"), worth("dbcaf-", "aejaf")
    (3, 2)
    """
    return sum(letter in LIKED[prompt[-1]] for letter in answer)


def pair(prompt: str, dice: random.Random) -> dict[str, Any]:
    """Two answers of different worth. The better one is chosen."""
    worse = better = ""
    while worth(prompt, worse) == worth(prompt, better):
        worse, better = sorted((_word(dice), _word(dice)), key=lambda answer: worth(prompt, answer))
    return {"prompt": prompt, "chosen": better, "rejected": worse}


def labelled_answer(prompt: str, dice: random.Random) -> dict[str, Any]:
    answer = _word(dice)
    return {"prompt": prompt, "completion": answer, "label": 2 * worth(prompt, answer) > LENGTH}


def _word(dice: random.Random) -> str:
    return "".join(dice.choices(LETTERS, k=LENGTH))
