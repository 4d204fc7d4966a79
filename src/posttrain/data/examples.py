"""Render rows as supervised examples: token ids, and which of them are trained.

forms.py says which columns are read. In a conversation the assistant's turns are trained (masks.py). In a row with
prompt and completion, the completion is trained; in plain text, everything except the first token. Prompt and answer
are tokenised separately, as in generation, so that training sees the ids that sampling will produce.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from posttrain.data.dropped import Dropped, Rendered, Unusable
from posttrain.data.forms import Form, detect
from posttrain.data.limits import refuse_long
from posttrain.data.masks import Segment, Tools, assistant_segments, closed
from posttrain.data.messages import Text
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.stream import collect
from posttrain.types import Example


def render_examples(
    rows: Sequence[Row], renderer: Renderer, *, eos_ids: Collection[int], max_length: int, max_dropped: float, what: str
) -> Rendered[Example]:
    """Render each row as an `Example`, or count it as dropped, with the reason. Raises `DataError` for the same reasons
    as `render_prompts`."""
    form = detect(rows, "examples")
    render = partial(render_example, form=form, renderer=renderer, eos_ids=eos_ids, max_length=max_length)
    examples, dropped = collect(rows, render, Example, max_dropped=max_dropped, what=what)
    return Rendered(rows=examples, form=form.name, dropped=dropped, source=rows)


def render_example(
    row: Row, index: int, form: Form, renderer: Renderer, *, eos_ids: Collection[int], max_length: int
) -> Example | Dropped:
    """Render one row of layout `form`; `index` is its number in the data."""
    values = form.read(row, chat=renderer.chat)
    if isinstance(values, Dropped):
        return values
    try:
        refuse_long(values, max_length, renderer.tokenizer)
        segments = _segments(values, renderer, eos_ids, row.origin)
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    ids = tuple(token for segment in segments for token in segment.ids)
    mask = tuple(segment.trained for segment in segments for _ in segment.ids)
    if len(ids) > max_length:
        return Dropped(row.origin, f"longer than {max_length} tokens")
    if not any(mask[1:]):
        return Dropped(row.origin, "nothing to train on")
    return Example(index=index, input_ids=ids, completion_mask=(False, *mask[1:]))


def _segments(
    values: Mapping[str, Any], renderer: Renderer, eos_ids: Collection[int], origin: str
) -> Sequence[Segment]:
    tools = values.get("tools")
    if "text" in values:
        ids = renderer.ids(values["text"], is_chat=False)
        answer = Segment(ids=ids[1:], trained=True)
        return closed([Segment(ids=ids[:1], trained=False), answer], renderer, eos_ids)
    if "messages" in values:
        messages = replace(renderer, chat=True).messages(values["messages"]) or ()
        return assistant_segments(messages, renderer, eos_ids, origin=origin, tools=tools)
    return answer_segments(values["prompt"], values["completion"], renderer, eos_ids, origin=origin, tools=tools)


def answer_segments(
    prompt: Text,
    completion: Text,
    renderer: Renderer,
    eos_ids: Collection[int],
    *,
    origin: str,
    tools: Tools = None,
) -> Sequence[Segment]:
    """Segments for a prompt, which is not trained, and an answer, which is trained including its final EOS. Both are
    text or chat messages."""
    if not isinstance(completion, str):
        renderer = replace(renderer, chat=True)
    messages = renderer.messages(prompt)
    if messages is not None:
        answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        talk, first = [*messages, *answer], len(messages)
        return assistant_segments(talk, renderer, eos_ids, origin=origin, first=first, tools=tools)
    assert isinstance(completion, str), "messages are always rendered as chat"
    asked = Segment(ids=renderer.ids(renderer.text(prompt), is_chat=False), trained=False)
    said = Segment(ids=renderer.ids(completion, is_chat=True), trained=True)
    return closed([asked, said], renderer, eos_ids)
