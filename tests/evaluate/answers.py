"""Judged answers by hand, on which the tests of counting work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posttrain.evaluate.evaluation import Answer, Evaluation, Record
from posttrain.evaluate.heldout import summarise


def answer(score: float | None, text: str = "", *, finish_reason: str = "eos", tokens: int = 4, **more: Any) -> Answer:
    """An answer whose vote is its text, as with rewards that extract no answer from it."""
    more = {"vote": text or None, "parts": {"r": score}, **more}
    return Answer(text=text, ids=tuple(range(tokens)), finish_reason=finish_reason, score=score, **more)


def record(index: int, greedy: Answer, *samples: Answer) -> Record:
    return Record(index=index, prompt=f"prompt {index}", greedy=greedy, samples=samples)


def scored(index: int, greedy: float | None, samples: str) -> Record:
    """`samples` lists the answers of one problem by letter; capital letters are right, `-` is unscored."""
    made = [answer(None if s == "-" else float(s.isupper()), s) for s in samples]
    return record(index, answer(greedy), *made)


def summary(records: Sequence[Record], *, samples: int = 4, **changes: Any) -> Evaluation:
    settings: dict[str, Any] = {
        "confidence": 0.95,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_completion_length": 8,
        "seed": 0,
        **changes,
    }
    return summarise(records, samples=samples, **settings)
