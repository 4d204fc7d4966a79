"""Sample rows for each kind of data: letters for the tiny model, sentences for a real one.

The rows are the same each time. No held-out prompt occurs in the training rows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from posttrain.lab.init.questions import CATALOGUE
from posttrain.tasks.base import split_of

Row = dict[str, Any]
LETTERS = "abcdefghij"
LIKED = frozenset("abcde")
WORD = 5
"""Letters of a prompt and of an answer. An odd number, so that liked and other letters never tie."""

CAPITALS: Mapping[str, str] = CATALOGUE["capitals"]


class Sample(NamedTuple):
    """Training rows and held-out rows."""

    train: list[Row]
    eval: list[Row]


def sample(data: str, *, tiny: bool) -> Sample:
    """Return the sample rows for a kind of data."""
    return _TINY[data]() if tiny else _SENTENCES[data]()


# --- letters ---------------------------------------------------------------------------------------------------------


def _backwards() -> Sample:
    """Return words and their reversals. There are many rows, because no single row shows the skill."""
    words = {split: _words(split, count) for split, count in (("train", 400), ("eval", 96))}
    train, held_out = ([{"prompt": f"{w}<", "answer": w[::-1]} for w in words[split]] for split in words)
    return Sample(train, held_out)


def _words_alone() -> Sample:
    train, held_out = _backwards()
    return Sample(*([{"prompt": row["prompt"]} for row in rows] for rows in (train, held_out)))


def _words_in_turns() -> Sample:
    """Return words without the sign behind them, because the chat template writes it."""
    both = _backwards()
    return Sample(*([row | {"prompt": row["prompt"].removesuffix("<")} for row in rows] for rows in both))


def _tastes() -> Sample:
    """Return pairs of five-letter answers. The one with more letters from a to e is chosen."""
    return Sample(*(_tasted(split, count) for split, count in (("train", 64), ("eval", 96))))


def _tasted(split: str, count: int) -> list[Row]:
    dice = random.Random(f"tastes/{split}")
    rows = []
    for word in _words(split, count):
        worse = better = ""
        while _worth(worse) == _worth(better):
            worse, better = sorted((_word(dice), _word(dice)), key=_worth)
        rows.append({"prompt": f"{word}:", "chosen": better, "rejected": worse})
    return rows


def _words(split: str, count: int) -> list[str]:
    dice = random.Random(f"init/{split}")
    new = dict.fromkeys(word for _ in range(20 * count) if split_of(word := _word(dice)) == split)
    return list(itertools.islice(new, count))


def _word(dice: random.Random) -> str:
    return "".join(dice.choices(LETTERS, k=WORD))


def _worth(answer: str) -> int:
    return sum(letter in LIKED for letter in answer)


# --- sentences -------------------------------------------------------------------------------------------------------


def _sums() -> Sample:
    dice = random.Random("init/sums")
    rows: dict[str, Row] = {}
    while len(rows) < 60:
        a, b, c = (dice.randrange(3, 60) for _ in range(3))
        prompt = f"A shelf holds {a + b} books. {b} are taken away and {c} are brought back. How many books are there?"
        rows.setdefault(prompt, {"prompt": prompt, "answer": str(a + c)})
    return _split(list(rows.values()))


def _lengths() -> Sample:
    rows = [
        {"prompt": f"Write one sentence about {subject}, with exactly {words} words.", "words": words}
        for words in range(5, 13)
        for subject in CATALOGUE["subjects"]
    ]
    random.Random("init/lengths").shuffle(rows)
    return _split(rows)


def _secrets() -> Sample:
    asked = "I think of a number from 1 to {most}. Guess it: answer with one number, and I say higher or lower."
    rows = [{"prompt": asked.format(most=most), "secret": 1 + 7 * most % 11 % most} for most in range(8, 48)]
    return _split(rows)


def _plain_answers() -> Sample:
    """Return pairs in which a short answer is preferred to a long-winded one."""
    return _split(
        [
            {"prompt": _asked(land), "chosen": _short(town), "rejected": _long(land, town)}
            for land, town in CAPITALS.items()
        ]
    )


def _demonstrated() -> Sample:
    talks = [
        [{"role": "user", "content": _asked(land)}, {"role": "assistant", "content": _short(town)}]
        for land, town in CAPITALS.items()
    ]
    return _split([{"messages": talk} for talk in talks])


def _asked(land: str) -> str:
    return f"What is the capital of {land}?"


def _short(town: str) -> str:
    return f"{town}."


def _long(land: str, town: str) -> str:
    return (
        f"What a great question! {land} is a fascinating place with a long history. I am happy to tell you that its "
        f"capital is {town}. Let me know if there is anything else that I can help you with!"
    )


def _split(rows: Sequence[Row]) -> Sample:
    """Split the rows: every fourth row is held out."""
    kept = [row for number, row in enumerate(rows) if number % 4]
    return Sample(kept, [row for number, row in enumerate(rows) if number % 4 == 0])


# --- made of pairs ---------------------------------------------------------------------------------------------------


def _judged(pairs: Callable[[], Sample]) -> Callable[[], Sample]:
    """Return a function that takes one answer of each pair, with a label: chosen and rejected ones in turn."""

    def rows(pairs: Sequence[Row]) -> list[Row]:
        sides = itertools.cycle((("chosen", True), ("rejected", False)))
        return [
            {"prompt": row["prompt"], "completion": row[side], "label": label}
            for row, (side, label) in zip(pairs, sides, strict=False)
        ]

    return lambda: Sample(*map(rows, pairs()))


def _imitated() -> Sample:
    """Return the chosen answers of the tiny pairs as examples."""
    chosen = ([{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows] for rows in _tastes())
    return Sample(*chosen)


_TINY: dict[str, Callable[[], Sample]] = {
    "answers": _backwards,
    "function": _words_alone,
    "environment": _words_in_turns,
    "pairs": _tastes,
    "thumbs": _judged(_tastes),
    "demonstrations": _imitated,
}
_SENTENCES: dict[str, Callable[[], Sample]] = {
    "answers": _sums,
    "function": _lengths,
    "environment": _secrets,
    "pairs": _plain_answers,
    "thumbs": _judged(_plain_answers),
    "demonstrations": _demonstrated,
}
