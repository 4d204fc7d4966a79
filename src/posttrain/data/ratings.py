"""Rows into rated answers: prompt, completion and a number; a pair whose answers have a score each is two of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.data.dropped import Dropped, Kept, Unusable, refuse_too_many
from posttrain.data.forms import columns_of, detect
from posttrain.data.layouts import number
from posttrain.data.limits import refuse_long
from posttrain.data.pairs import render_answer
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.types import RatedExample

SCORED_PAIR = {"chosen": "score_chosen", "rejected": "score_rejected"}
"""The answers of a pair, and the columns of their scores (UltraFeedback)."""
Read = Callable[[Row], list[dict[str, Any] | Dropped]]


@dataclass(frozen=True, kw_only=True)
class RatedSet(Kept):
    """The usable rated answers, and what was left out of them."""

    rows: tuple[RatedExample, ...]

    @property
    def usable(self) -> Sequence[RatedExample]:
        return self.rows


def render_ratings(
    rows: Sequence[Row],
    renderer: Renderer,
    *,
    eos_ids: Collection[int],
    max_length: int,
    max_dropped: float,
    what: str,
) -> RatedSet:
    """Every answer as a `RatedExample`, or counted as dropped with the reason. Raises as `render_pairs` does."""
    read, usable, dropped = _reader(rows, chat=renderer.chat), [], []
    for index, row in enumerate(rows):
        for values in read(row):
            found = (
                values if isinstance(values, Dropped) else _render(values, index, row, renderer, eos_ids, max_length)
            )
            (usable if isinstance(found, RatedExample) else dropped).append(found)
    refuse_too_many(dropped, len(usable) + len(dropped), max_dropped, what)
    return RatedSet(rows=tuple(usable), dropped=tuple(dropped))


def _reader(rows: Sequence[Row], *, chat: bool) -> Read:
    """How the answers of a row are read; DataError when the columns hold none."""
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


def _render(
    values: dict[str, Any], index: int, row: Row, renderer: Renderer, eos_ids: Collection[int], max_length: int
) -> RatedExample | Dropped:
    prompt, answer, tools = values["prompt"], values["completion"], values.get("tools")
    try:
        refuse_long((prompt, answer), max_length, renderer.tokenizer)
        example = render_answer(prompt, answer, renderer, eos_ids, index=index, origin=row.origin, tools=tools)
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    if len(example.input_ids) > max_length:
        return Dropped(row.origin, f"longer than {max_length} tokens")
    if not any(example.completion_mask):
        return Dropped(row.origin, "nothing to rate")
    return RatedExample(index=index, example=example, score=values["score"])
