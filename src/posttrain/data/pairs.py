"""Render rows as preference pairs: a prompt, a chosen answer and a rejected answer.

forms.py says which columns are read. `answer_segments` renders both answers like any answer, and each ends with its
EOS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from posttrain.data.dropped import Dropped, Rendered, Unusable
from posttrain.data.examples import answer_segments
from posttrain.data.forms import Form, detect
from posttrain.data.limits import refuse_long
from posttrain.data.masks import Tools
from posttrain.data.messages import Text
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair, read_sampled_pair
from posttrain.data.stream import collect
from posttrain.types import Example, Pair


def render_pairs(
    rows: Sequence[Row], renderer: Renderer, *, eos_ids: Collection[int], max_length: int, max_dropped: float, what: str
) -> Rendered[Pair]:
    """Render each row as a `Pair`, or count it as dropped, with the reason. `what` names the rows in errors.

    Raises `DataError` if a column is missing from all rows, or if a larger share than `max_dropped` cannot be used.
    """
    form = detect(rows, "pairs")
    render = partial(render_pair, form=form, renderer=renderer, eos_ids=eos_ids, max_length=max_length)
    pairs, dropped = collect(rows, render, Pair, max_dropped=max_dropped, what=what)
    return Rendered(rows=pairs, form=form.name, dropped=dropped, source=rows)


def render_pair(
    row: Row, index: int, form: Form, renderer: Renderer, *, eos_ids: Collection[int], max_length: int
) -> Pair | Dropped:
    """Render one row of layout `form`; `index` is its number in the data. A pair that a run sampled is read from its
    token ids."""
    if is_sampled_pair(row):
        return _sampled(row, index, renderer, max_length)
    values = form.read(row, chat=renderer.chat)
    if isinstance(values, Dropped):
        return values
    try:
        for side in ("chosen", "rejected"):
            refuse_long((values["prompt"], values[side]), max_length, renderer.tokenizer)
        chosen, rejected = (_side(values, name, index, row, renderer, eos_ids) for name in ("chosen", "rejected"))
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    if max(len(chosen.input_ids), len(rejected.input_ids)) > max_length:
        return Dropped(row.origin, f"longer than {max_length} tokens")
    if chosen.input_ids == rejected.input_ids:
        return Dropped(row.origin, "chosen and rejected are the same tokens")
    if not (any(chosen.completion_mask) and any(rejected.completion_mask)):
        return Dropped(row.origin, "nothing to compare")
    return Pair(index=index, chosen=chosen, rejected=rejected, margin=values.get("margin"))


def _sampled(row: Row, index: int, renderer: Renderer, max_length: int) -> Pair | Dropped:
    try:
        pair = read_sampled_pair(row, renderer.tokenizer, index)
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    longest = max(len(pair.chosen.input_ids), len(pair.rejected.input_ids))
    return pair if longest <= max_length else Dropped(row.origin, f"longer than {max_length} tokens")


def _side(
    values: Mapping[str, Any], name: str, index: int, row: Row, renderer: Renderer, eos_ids: Collection[int]
) -> Example:
    prompt, tools = values["prompt"], values.get("tools")
    return render_answer(prompt, values[name], renderer, eos_ids, index=index, origin=row.origin, tools=tools)


def render_answer(
    prompt: Text,
    answer: Text,
    renderer: Renderer,
    eos_ids: Collection[int],
    *,
    index: int,
    origin: str,
    tools: Tools = None,
) -> Example:
    """Render a prompt and an answer up to its final EOS. Text that a template writes after the EOS is left out."""
    segments = list(answer_segments(prompt, answer, renderer, eos_ids, origin=origin, tools=tools))
    while segments and not segments[-1].trained:
        segments.pop()
    mask = tuple(segment.trained for segment in segments for _ in segment.ids)
    return Example(
        index=index,
        input_ids=tuple(token for segment in segments for token in segment.ids),
        completion_mask=(False, *mask[1:]) if mask else (),
    )


def judged_answer(
    values: Mapping[str, Any],
    index: int,
    row: Row,
    renderer: Renderer,
    eos_ids: Collection[int],
    max_length: int,
    to: str,
) -> Example | Dropped:
    """Render prompt and completion of a row with a label or a score. `to` completes the reason "nothing to …" for a row
    without a trained token."""
    try:
        refuse_long((values["prompt"], values["completion"]), max_length, renderer.tokenizer)
        example = _side(values, "completion", index, row, renderer, eos_ids)
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    if len(example.input_ids) > max_length:
        return Dropped(row.origin, f"longer than {max_length} tokens")
    return example if any(example.completion_mask) else Dropped(row.origin, f"nothing to {to}")
