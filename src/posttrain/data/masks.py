"""Find the tokens of the assistant in a conversation, for any chat template, or say why that is impossible.

There are three ways, tried in this order:

1. prefix: the rendered turns before an answer are a prefix of the rendered turns with the answer. This holds for every
   template that only appends. To find the last answer alone, it is enough for any template.
2. tags: the template itself marks the answers with {% generation %}.
3. marks: characters that occur in no data are put at both ends of each message, and their positions in the rendered
   text show where the message is. Without the marks, the rendering must be exactly the same. This holds for templates
   that rewrite earlier turns, such as those that remove the reasoning from them.

The trained tokens begin after the header that prompts generation and end with the end-of-turn token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from posttrain.data.dropped import Unusable
from posttrain.data.limits import texts_in
from posttrain.data.special import eos_pattern
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.data.prompts import Renderer

Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive ids that are all trained or all untrained."""

    ids: tuple[int, ...]
    trained: bool


class Turn(NamedTuple):
    """The position of an answer in the rendered text, without its header and with its end-of-turn token."""

    start: int
    end: int


class NotFound(Exception):
    """A way to find answers does not work for this conversation and template. The message says why."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages with a chat template, and the answers among them that are to be trained."""

    messages: Sequence[Mapping[str, Any]]
    trained: Sequence[int]
    """Indices of the trained assistant turns in `messages`, in ascending order."""
    renderer: Renderer
    eos_ids: Collection[int]
    tools: Tools = None

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompted: bool = False) -> str:
        return self.renderer.render(messages, add_generation_prompt=prompted, tools=self.tools)

    def end_of_turn(self, text: str, start: int, stop: int, said: Any = "") -> int | None:
        """The position after the EOS that ends the turn in `text[start:stop]`, or None. `said` is the content of the
        turn: the EOS tokens inside it are skipped.

        An EOS in the middle of an answer is part of the data. An EOS at the very end of an answer ends the turn.
        """
        names = eos_pattern(self.renderer.tokenizer, self.eos_ids)
        if names is None:
            return None
        ends = [match.end() for match in names.finditer(text, start, stop)]
        texts = [text.strip() for text in texts_in(said)]
        inside = sum(match.end() < len(one) for one in texts for match in names.finditer(one))
        return ends[min(inside, len(ends) - 1)] if ends else None


def assistant_segments(
    messages: Sequence[Mapping[str, Any]],
    renderer: Renderer,
    eos_ids: Collection[int],
    *,
    origin: str,
    first: int = 0,
    tools: Tools = None,
) -> list[Segment]:
    """The rendered conversation in segments. The assistant's turns from message `first` on are trained.

    With `train_on: last` only the last of these turns is trained. A turn with `weight` 0 (OpenAI) is never trained. If
    the template writes no EOS after the last trained turn, one is added. Raises `Unusable` if the template refuses the
    conversation, and `DataError` if no way works.
    """
    answers = [n for n, message in enumerate(messages) if message["role"] == "assistant" and n >= first]
    trained = [n for n in answers if messages[n].get("weight", 1) != 0]
    trained = trained[-1:] if renderer.train_on == "last" else trained
    if not trained:
        raise Unusable("nothing to train on")
    _require_calls(messages, renderer)
    talk = Conversation(messages=messages, trained=trained, renderer=renderer, eos_ids=eos_ids, tools=tools)
    segments, _ = find_answers(talk, origin)
    return closed(segments, renderer, eos_ids)


def find_answers(talk: Conversation, origin: str) -> tuple[list[Segment], str]:
    """The segments of a conversation, and the name of the way by which they were found."""
    refused: Unusable | None = None
    reasons = []
    for way, find in WAYS.items():
        try:
            return find(talk), way
        except NotFound as reason:
            reasons.append(str(reason))
        except Unusable as reason:
            refused = refused or reason
    if refused is not None:
        raise refused
    raise DataError(
        given=f"{origin}: {reasons[0]}, so the assistant's tokens cannot be separated from the rest "
        f"({'; '.join(reasons[1:])})",
        allowed="a chat template that only appends, that marks answers with {% generation %}, or that leaves the "
        "text of each answer unchanged",
        fix="Set data.train_on = last, use prompt and completion columns, or name a training version of the template "
        "in model.chat_template.",
    )


def closed(segments: Sequence[Segment], renderer: Renderer, eos_ids: Collection[int]) -> list[Segment]:
    """Add an EOS to the last answer if it has none: a model that never sees an EOS does not learn to stop."""
    eos = cast("int | None", renderer.tokenizer.eos_token_id)
    last = max(place for place, segment in enumerate(segments) if segment.trained)
    answer = segments[last].ids
    if eos is None or (answer and answer[-1] in eos_ids):
        return list(segments)
    return [*segments[:last], replace(segments[last], ids=(*answer, eos)), *segments[last + 1 :]]


# --- the three ways --------------------------------------------------------------------------------------------------


def by_prefix(talk: Conversation) -> list[Segment]:
    """Find each answer as the text that follows its prompt in the rendering."""
    text, turns = "", []
    for place in talk.trained:
        after = talk.render(talk.messages[: place + 1])
        if place:
            before = talk.render(talk.messages[:place], prompted=True)
        else:  # there is no prompt to render
            begins = replace(talk, messages=talk.messages[:1])
            before = after[: _behind_header(begins, after, 0, 0, len(after))]
        if not before.startswith(text) or not after.startswith(before):
            raise NotFound("the chat template rewrites earlier turns when a turn is added")
        end = talk.end_of_turn(after, len(before), len(after), said=talk.messages[place])
        turns.append(Turn(len(before), len(after) if end is None else end))
        text = after
    return _cut(text, turns, talk.renderer)


def by_tags(talk: Conversation) -> list[Segment]:
    """Find the answers by the template's {% generation %} tags. An EOS right after the tags belongs to the answer."""
    renderer = talk.renderer
    if not re.search(r"\{%-?\s*generation\s*-?%\}", _template_text(renderer)):
        raise NotFound("the template has no {% generation %} tags")
    if renderer.spell is not None:
        raise NotFound("the tags are found with the tokenizer, which would read spelled special tokens as tokens")
    encoded = renderer.encode_marked(talk.messages, talk.tools)
    ids, mask = list(encoded["input_ids"]), [bool(one) for one in encoded["assistant_masks"]]
    starts = [n for n, on in enumerate(mask) if on and not (n and mask[n - 1])]
    ends = [next((m for m in range(n, len(mask)) if not mask[m]), len(mask)) for n in starts]
    ends = [
        end + 1 if end < len(ids) and ids[end] in talk.eos_ids and ids[end - 1] not in talk.eos_ids else end
        for end in ends
    ]
    answers = [n for n, message in enumerate(talk.messages) if message["role"] == "assistant"]
    if len(starts) != len(answers):
        raise NotFound(f"the template marks {len(starts)} stretches for {len(answers)} answers")
    segments, done = [], 0
    for place, start, end in zip(answers, starts, ends, strict=True):
        if place in talk.trained:
            segments += [
                Segment(ids=tuple(ids[done:start]), trained=False),
                Segment(ids=tuple(ids[start:end]), trained=True),
            ]
            done = end
    return [*segments, Segment(ids=tuple(ids[done:]), trained=False)]


def by_marks(talk: Conversation) -> list[Segment]:
    """Find the answers by marks (see `Marks`). The header is the generation prompt, or the text that also precedes a
    different answer at that position."""
    marks = Marks.place(talk)
    turns = []
    for place in talk.trained:
        low, high = marks.end_before(place), marks.ends.get(place)
        if high is None:
            raise NotFound("the template leaves out an answer or changes it")
        start = _behind_header(talk, marks.text, place, low, high)
        end = talk.end_of_turn(marks.text, high, marks.begin_after(place), said=_behind_mark(talk.messages[place]))
        if end is None and talk.messages[place].get("tool_calls"):
            raise NotFound("nothing ends the turn after a tool call")
        is_last = place == len(talk.messages) - 1
        turns.append(Turn(start, end if end is not None else len(marks.text) if is_last else high))
    return _cut(marks.text, turns, talk.renderer)


WAYS: Mapping[str, Callable[[Conversation], list[Segment]]] = {"prefix": by_prefix, "tags": by_tags, "marks": by_marks}


# --- marks -----------------------------------------------------------------------------------------------------------

_BEGIN, _END, _PROBE = "\ue000", "\ue001", "\ue002"
"""Characters of Unicode's private use area."""
_MARK = re.compile(f"([{_BEGIN}{_END}])(\\d+){_PROBE}")


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The positions in the rendered conversation where messages begin and end."""

    text: str
    begins: Mapping[int, int]
    """The beginnings of the messages that are not answers."""
    ends: Mapping[int, int]

    @staticmethod
    def place(talk: Conversation) -> Marks:
        text = talk.render(talk.messages)
        if any(mark in text for mark in (_BEGIN, _END, _PROBE)):
            raise NotFound("the data holds characters of the private use area")
        marked = talk.render([_marked(message, n) for n, message in enumerate(talk.messages)])
        pieces, found, length = [], {_BEGIN: {}, _END: {}}, 0
        done = 0
        for match in _MARK.finditer(marked):
            pieces.append(marked[done : match.start()])
            length, done = length + match.start() - done, match.end()
            if int(match[2]) in found[match[1]]:
                raise NotFound("the template writes a message twice")
            found[match[1]][int(match[2])] = length
        if "".join([*pieces, marked[done:]]) != text:
            raise NotFound("the template's output depends on the beginning or end of messages")
        return Marks(text=text, begins=found[_BEGIN], ends=found[_END])

    def end_before(self, place: int) -> int:
        """The end of the last rendered message before message `place`."""
        return max((end for n, end in self.ends.items() if n < place), default=0)

    def begin_after(self, place: int) -> int:
        """The beginning of the next message after message `place`. If that is an answer, its end: the beginning of an
        answer is not marked."""
        later = [at for known in (self.begins, self.ends) for n, at in known.items() if n > place]
        return min(later, default=len(self.text))


def _marked(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The message with marks at both ends, inside the surrounding white space, which templates may trim.

    An answer has no mark at its beginning, because a template may remove the reasoning there. If an answer consists of
    tool calls only, the mark is in the name of the last call.
    """
    begin, end = (f"{mark}{place}{_PROBE}" for mark in (_BEGIN, _END))
    content: str = message["content"]
    body = content.strip()
    if not body and message.get("tool_calls"):
        *others, last = message["tool_calls"]
        function = {**last["function"], "name": last["function"]["name"] + end}
        return {**message, "tool_calls": [*others, {**last, "function": function}]}
    at = content.index(body) if body else len(content)
    front = "" if message["role"] == "assistant" else begin
    return {**message, "content": content[:at] + front + body + end + content[at + len(body) :]}


def _behind_mark(message: Mapping[str, Any]) -> Any:
    """The content of an answer after its end mark: its tool calls, or the arguments of the last call."""
    calls = message.get("tool_calls") or [{"function": {"arguments": {}}}]
    return calls if message["content"].strip() else calls[-1]["function"]["arguments"]


def _behind_header(talk: Conversation, text: str, place: int, low: int, high: int) -> int:
    """The beginning of an answer, between `low`, the end of the message before it, and `high`, its own end."""
    before = talk.messages[:place]
    asked = before or [{"role": "user", "content": _PROBE}]  # templates cannot render an empty conversation
    prompted, unprompted = talk.render(asked, prompted=True), talk.render(asked)
    if len(prompted) > len(unprompted) and prompted.startswith(unprompted):
        header = prompted[len(unprompted) :]
        if (at := text.find(header, low, high)) >= 0:
            return at + len(header)
    probed = talk.render([*before, {"role": "assistant", "content": _PROBE}, *talk.messages[place + 1 :]])
    at = probed.find(_PROBE)
    same = next((n for n, (a, b) in enumerate(zip(probed[: max(at, 0)], text, strict=False)) if a != b), at)
    if not low < same <= high:
        raise NotFound("the header of an answer cannot be separated from it")
    return same


# --- shared ----------------------------------------------------------------------------------------------------------


def _cut(text: str, turns: Sequence[Turn], renderer: Renderer) -> list[Segment]:
    """Cut the text into segments at the turns. Each answer is tokenised separately, as in generation, so that training
    sees the ids that sampling will produce."""
    segments, done = [], 0
    for turn in turns:
        segments.append(Segment(ids=renderer.ids(text[done : turn.start], is_chat=True), trained=False))
        segments.append(Segment(ids=renderer.ids(text[turn.start : turn.end], is_chat=True), trained=True))
        done = turn.end
    return [*segments, Segment(ids=renderer.ids(text[done:], is_chat=True), trained=False)]


def _require_calls(messages: Sequence[Mapping[str, Any]], renderer: Renderer) -> None:
    """Raise `Unusable` if the template leaves out tool calls: the model would learn to give empty answers.

    Every call gets another name, which must be in the output. Some templates write only the id of a call, which holds
    its name, and others check the length of ids: so the second try changes the ids, too.
    """
    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    if not calls:
        return
    written = renderer.render(messages, add_generation_prompt=False)
    stem = "n" + hashlib.sha256(written.encode(errors="replace")).hexdigest()[:16]  # does not occur in the text itself
    for ids_too in (False, True):
        renamed = _with_other_names(messages, stem, ids_too=ids_too)
        with suppress(Unusable):
            shown = renderer.render(renamed, add_generation_prompt=False)
            if all(f"{stem}_{number}_" in shown for number in range(calls)):
                return
    raise Unusable("the chat template leaves out tool calls")


def _with_other_names(messages: Sequence[Mapping[str, Any]], stem: str, *, ids_too: bool) -> list[dict[str, Any]]:
    """The messages with the names STEM_0_, STEM_1_, … of the tool calls in order. `ids_too`: also within their ids."""
    numbers, ids, found = count(), dict[str, str](), []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            old, name = call["function"]["name"], f"{stem}_{next(numbers)}_"
            calls.append({**call, "function": {**call["function"], "name": name}})
            if ids_too and isinstance(call.get("id"), str):
                calls[-1]["id"] = ids[call["id"]] = call["id"].replace(old, name)
        answered = ids.get(str(message.get("tool_call_id")))
        found.append(
            {**message, **({"tool_calls": calls} if calls else {"tool_call_id": answered} if answered else {})}
        )
    return found


def _template_text(renderer: Renderer) -> str:
    template = renderer.tokenizer.chat_template
    return template if isinstance(template, str) else "\n".join(map(str, (template or {}).values()))
