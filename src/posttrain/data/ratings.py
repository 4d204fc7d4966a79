"""Render rows as rated answers: prompt, completion and score. A pair with a score for each answer gives two of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from posttrain.data.dropped import Dropped, Rendered, Unusable, refuse_too_many
from posttrain.data.forms import columns_of, detect
from posttrain.data.layouts import number
from posttrain.data.pairs import judged_answer
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.types import RatedExample

SCORED_PAIR = {"chosen": "score_chosen", "rejected": "score_rejected"}
"""The answers of a pair, and the columns of their scores (UltraFeedback)."""
Read = Callable[[Row], list[dict[str, Any] | Dropped]]


def render_ratings(
    rows: Sequence[Row], renderer: Renderer, *, eos_ids: Collection[int], max_length: int, max_dropped: float, what: str
) -> Rendered[RatedExample]:
    """Render each answer as a `RatedExample`, or count it as dropped, with the reason. Raises `DataError` for the same
    reasons as `render_pairs`."""
    read, usable, dropped = _reader(rows, chat=renderer.chat), [], []
    for index, row in enumerate(rows):
        for values in read(row):
            if isinstance(values, Dropped):
                dropped.append(values)
                continue
            example = judged_answer(values, index, row, renderer, eos_ids, max_length, to="rate")
            if isinstance(example, Dropped):
                dropped.append(example)
            else:
                usable.append(RatedExample(index=index, example=example, score=values["score"]))
    refuse_too_many(dropped, len(usable) + len(dropped), max_dropped, what)
    return Rendered(rows=tuple(usable), form="an answer and its score", dropped=tuple(dropped), source=rows)


def _reader(rows: Sequence[Row], *, chat: bool) -> Read:
    """The function that reads the answers of a row. Raises DataError if the columns hold no rated answers."""
    columns = set(columns_of(rows))
    if "score" not in columns and {*SCORED_PAIR, *SCORED_PAIR.values()} <= columns:
        pairs = detect(rows, "pairs")
        return lambda row: _sides(row, pairs.read(row, chat=chat))
    form = detect(rows, "ratings")
    return lambda row: [form.read(row, chat=chat)]


def _sides(row: Row, pair: dict[str, Any] | Dropped) -> list[dict[str, Any] | Dropped]:
    if isinstance(pair, Dropped):
        return [pair]
    return [_side(row, pair, side) for side in SCORED_PAIR]


def _side(row: Row, pair: dict[str, Any], side: str) -> dict[str, Any] | Dropped:
    try:
        return {**pair, "completion": pair[side], "score": number(row.values, SCORED_PAIR[side])}
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
