"""Rows into supervised examples: the ids, and which of them are trained.

Forms, told by their columns: `messages` (every assistant turn is trained, its end-of-turn token included), `prompt` +
`completion`, `instruction` (+ `input`) + `output`, and `text` (everything but its first token). Prompt and answer are
tokenised apart, as in generation, so that training sees the ids that sampling will produce.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from posttrain.data.dropped import Dropped, refuse_too_many, summary
from posttrain.data.prompts import Renderer, fault_in_messages, with_input
from posttrain.data.read import Row
from posttrain.errors import DataError
from posttrain.types import Example

FORMS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt and completion": ("prompt", "completion"),
    "instruction and output": ("instruction", "output"),
    "text": ("text",),
}


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """The usable examples, and what was left out of them."""

    examples: tuple[Example, ...]
    form: str
    dropped: tuple[Dropped, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def dropped_summary(self) -> str:
        """What was left out and why, in a sentence; "" for nothing."""
        return summary(self.dropped, len(self.examples) + len(self.dropped))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Ids that are trained, or not, as a whole."""

    ids: tuple[int, ...]
    trained: bool


def render_examples(
    rows: Sequence[Row],
    renderer: Renderer,
    *,
    eos_ids: Collection[int],
    max_length: int,
    max_dropped: float,
    what: str,
) -> ExampleSet:
    """Every row as an `Example`, or counted as dropped with the reason. Raises `DataError` as `render_prompts` does."""
    form = detect_form(rows)
    examples, dropped = [], []
    for index, row in enumerate(rows):
        fault = _fault(row, form)
        segments = [] if fault else list(_segments(row, form, renderer, eos_ids))
        ids = tuple(token for segment in segments for token in segment.ids)
        mask = tuple(segment.trained for segment in segments for _ in segment.ids)
        if fault:
            dropped.append(Dropped(row.origin, fault))
        elif len(ids) > max_length:
            dropped.append(Dropped(row.origin, f"longer than {max_length} tokens"))
        elif not any(mask[1:]):
            dropped.append(Dropped(row.origin, "nothing to train on"))
        else:
            examples.append(Example(index=index, input_ids=ids, completion_mask=(False, *mask[1:])))
    refuse_too_many(dropped, len(rows), max_dropped, what)
    return ExampleSet(examples=tuple(examples), form=form, dropped=tuple(dropped))


def detect_form(rows: Sequence[Row]) -> str:
    """The first form of `FORMS` whose columns the data has. Raises `DataError` when there is none."""
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    for form, needed in FORMS.items():
        if all(name in columns for name in needed):
            return form
    raise DataError(
        given=f"supervised training cannot use the columns {', '.join(columns)}",
        allowed="; ".join(" + ".join(needed) for needed in FORMS.values()),
        fix="Rename the columns of the data, for example to prompt and completion.",
    )


def _fault(row: Row, form: str) -> str:
    """Why a row cannot become an example; "" when it can."""
    for name in FORMS[form]:
        value = row.values.get(name)
        if value is None:
            return f"no value in column {name!r}"
        if name == "messages" or (name in ("prompt", "completion") and isinstance(value, list)):
            if fault := fault_in_messages(value):
                return f"{name}: {fault}"
            if name != "prompt" and not any(message["role"] == "assistant" for message in value):
                return f"{name} without an assistant turn"
        elif not isinstance(value, str):
            return f"column {name!r} is a {type(value).__name__}, not text"
    return ""


def _segments(row: Row, form: str, renderer: Renderer, eos_ids: Collection[int]) -> Iterator[Segment]:
    values = row.values
    if form == "text":
        ids = renderer.ids(values["text"], is_chat=False)
        yield Segment(ids=ids[:1], trained=False)
        yield Segment(ids=_closed(ids[1:], renderer, eos_ids), trained=True)
    elif form == "messages":
        yield from _turns(values["messages"], row.origin, renderer, eos_ids)
    else:
        yield from answer_segments(*_pair(values, form), renderer, eos_ids, origin=row.origin)


def answer_segments(
    prompt: str | Sequence[dict[str, Any]],
    completion: str | Sequence[dict[str, Any]],
    renderer: Renderer,
    eos_ids: Collection[int],
    *,
    origin: str,
) -> Iterator[Segment]:
    """A prompt, not trained, and an answer to it, trained up to its closing EOS; each is text or chat messages."""
    if not isinstance(completion, str):
        renderer = replace(renderer, chat=True)
    messages = renderer.messages(prompt)
    if messages is not None:
        answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        yield from _turns([*messages, *answer], origin, renderer, eos_ids, first=len(messages))
    else:
        assert isinstance(completion, str), "messages are always rendered as chat"
        yield Segment(ids=renderer.ids(renderer.text(prompt), is_chat=False), trained=False)
        ids = tuple(renderer.tokenizer(completion, add_special_tokens=False).input_ids)
        yield Segment(ids=_closed(ids, renderer, eos_ids), trained=True)


def _pair(values: dict[str, Any], form: str) -> tuple[Any, Any]:
    """Prompt and completion, each as text or as chat messages."""
    if form == "prompt and completion":
        return values["prompt"], values["completion"]
    return with_input(values["instruction"], values.get("input")), values["output"]


def _closed(ids: tuple[int, ...], renderer: Renderer, eos_ids: Collection[int]) -> tuple[int, ...]:
    """With an EOS at the end: a model that never sees one never learns to stop."""
    eos = cast("int | None", renderer.tokenizer.eos_token_id)
    return ids if (ids and ids[-1] in eos_ids) or eos is None else (*ids, eos)


def _turns(
    messages: Sequence[dict[str, Any]],
    origin: str,
    renderer: Renderer,
    eos_ids: Collection[int],
    *,
    first: int = 0,
) -> Iterator[Segment]:
    """The rendered conversation, cut at the assistant's turns from message `first` on, which are trained.

    Works with any template that only ever appends. The last turn gets an EOS where the template writes none.
    """
    done, answer = "", ()
    assistant = [place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= first]
    for place in assistant:
        before, after = _render(messages, place, origin, renderer, done)
        yield Segment(ids=renderer.ids(before[len(done) :], is_chat=True), trained=False)
        answer = renderer.ids(after[len(before) :], is_chat=True)
        end = next((n + 1 for n, token in enumerate(answer) if token in eos_ids), len(answer))
        yield Segment(ids=answer[:end], trained=True)
        yield Segment(ids=answer[end:], trained=False)
        done = after
    if not any(token in eos_ids for token in answer):
        yield Segment(ids=_closed((), renderer, eos_ids), trained=True)


def _render(
    messages: Sequence[dict[str, Any]], place: int, origin: str, renderer: Renderer, done: str
) -> tuple[str, str]:
    """The text up to the assistant's turn at `place`, and with it."""
    before = renderer.render(messages[:place], add_generation_prompt=True)
    after = renderer.render(messages[: place + 1], add_generation_prompt=False)
    if not before.startswith(done) or not after.startswith(before):
        raise DataError(
            given=f"{origin}: the chat template rewrites earlier turns when a turn is added, so the assistant's "
            "tokens cannot be told from the rest",
            allowed="a chat template that only appends",
            fix="Use prompt and completion columns, or a training version of the template in model.chat_template.",
        )
    return before, after
