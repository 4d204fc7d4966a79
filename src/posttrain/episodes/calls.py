"""Formats of tool calls in the text of a policy, for the big model families, recognised from the chat template.

    hermes     <tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>          Hermes, Qwen
    llama      {"name": "look", "parameters": {"at": "x"}}, the whole turn                 Llama 3
    mistral    [TOOL_CALLS][{"name": "look", "arguments": {"at": "x"}}]
    deepseek   <｜tool▁call▁begin｜>function<｜tool▁sep｜>look ```json {"at": "x"} ```<｜tool▁call▁end｜>
    harmony    <|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x"}<|call|>        gpt-oss

Text that begins as a call but cannot be read is also a call: its result says what is wrong with it. Calls in the
reasoning of a turn are thoughts, and not made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.data.dropped import Unusable
from posttrain.data.harmony import parts
from posttrain.errors import ConfigError
from posttrain.verify.mathematics.places import REASONING

if TYPE_CHECKING:
    from posttrain.data.prompts import Renderer
    from posttrain.episodes.bridge import Bridge

_TRIED: Mapping[str, Any] = {"at": {"deep": [1, -2.5, True, None, {}]}, "said": "a \"b\" \\ 'c'\n</x> Zürich"}
"""The arguments of the call that a template must write in a readable form."""
_CLOSINGS = re.compile("|".join(re.escape(closing) for _, closing in REASONING))
_OPENINGS = re.compile("|".join(re.escape(opening) for opening, _ in REASONING))
_DECODER = json.JSONDecoder()


class Call(NamedTuple):
    """One tool call; `problem` says why it cannot be made."""

    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


class Said(NamedTuple):
    """A turn: its text without the calls, and the calls. If a call cannot be read, `content` is the whole text, because
    a template would write a different call."""

    content: str
    calls: list[Call]
    thinking: str = ""
    """Text outside the calls, in channels that the user does not see (Harmony)."""
    answer: str | None = None
    """The text beside the calls, which rewards judge, also if a call cannot be read; None: the whole text."""

    @property
    def readable(self) -> bool:
        """Whether all of the calls can be read."""
        return not any(one.problem for one in self.calls)


@dataclass(frozen=True)
class CallFormat:
    """The form in which a model family writes calls."""

    name: str
    marks: tuple[str, ...]
    """A chat template that contains all of these writes this format."""
    find: Callable[[str], Said] = field(repr=False)
    channels: bool = False
    """Whether turns are written in channels, which keep reasoning, calls and answers apart."""

    def read(self, text: str) -> Said:
        """Return the text and calls of a turn; `text` includes special tokens except the one that ends the turn."""
        begin, end = (0, len(text)) if self.channels else _spoken(text)
        found = self.find(text[begin:end])
        if not found.calls:
            return Said(text, [])
        content = (text[:begin] + found.content).strip()
        answer = None if self.channels else content  # the text of a turn in channels never holds its calls
        if not found.readable:
            return Said(text, found.calls, answer=answer)
        return found._replace(content=content, answer=answer)


def template_of(renderer: Renderer) -> str:
    """Return the text of the chat template; if there are several, of all of them."""
    template = renderer.tokenizer.chat_template
    return template if isinstance(template, str) else "\n".join(map(str, (template or {}).values()))


def recognised(template: str) -> CallFormat:
    """Return the format that a chat template writes. ConfigError if it is none of the known ones."""
    for known in FORMATS.values():
        if all(mark in template for mark in known.marks):
            return known
    raise ConfigError(
        given="tools, but the chat template writes calls in an unknown format",
        allowed=", ".join(FORMATS),
        fix="Name the template of a model that calls tools in model.chat_template.",
    )


def proven(template: str, bridge: Bridge) -> CallFormat:
    """Return the recognised format, if it can read the call that the template writes. ConfigError otherwise."""
    found = recognised(template)
    name = str(bridge.tools[0]["function"]["name"])
    try:
        turn = bridge.turn_that_calls(name, _TRIED)
        read = [(one.name, one.arguments) for one in found.read(turn).calls]
    except Unusable as refused:
        turn, read = str(refused), []
    if read != [(name, _TRIED)]:
        raise ConfigError(
            given=f"the chat template writes a call that cannot be read back in the format {found.name}: {turn!r:.300}",
            allowed=", ".join(FORMATS),
            fix="Name the template of a model that calls tools in one of these formats in model.chat_template.",
        )
    return found


def _spoken(text: str) -> tuple[int, int]:
    """Return where the text begins and ends that is not reasoning. Marks inside a JSON object, such as the arguments of
    a call, are text, and so is an opening mark inside a line: reasoning begins a line.

    >>> spoken = "<think>2?</think> It is `<think>`\\n<think> or 4"
    >>> begin, end = _spoken(spoken)
    >>> spoken[begin:end]
    ' It is `<think>`\\n'
    """
    begin, end, at = 0, len(text), 0
    for mark in sorted([*_CLOSINGS.finditer(text), *_OPENINGS.finditer(text)], key=lambda mark: mark.start()):
        at = max(at, _behind_objects(text, at, mark.start()))
        if at > mark.start():
            continue
        if _CLOSINGS.fullmatch(mark[0]):
            begin, end, at = mark.end(), len(text), mark.end()
        elif not text[max(begin, text.rfind("\n", 0, mark.start()) + 1) : mark.start()].strip():
            end = min(end, mark.start())
    return begin, end


def _behind_objects(text: str, at: int, place: int) -> int:
    """Return the end of the JSON object around `place`, or `place` itself; objects begin at or after `at`."""
    while (at := text.find("{", at, place)) >= 0:
        try:
            _, at = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if error.pos == place:  # each object inside this one ends before `place`, or breaks off there
                return place
            at += 1
        except (ValueError, RecursionError):
            return place
        if at > place:
            return at
    return place


def _decoded(text: str, at: int) -> tuple[Any, int] | None:
    """Return the JSON value at a place, behind white space, and where it ends; None if there is none."""
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _hermes(text: str) -> Said:
    opening, closing = "<tool_call>", "</tool_call>"
    at, calls = text.find(opening), list[Call]()
    content = text if at < 0 else text[:at]
    while at >= 0:
        at += len(opening)
        found = _decoded(text, at)
        if found is not None and _ends(text, found[1], (closing, opening)):
            calls.append(_call(found[0]))
            at = found[1]
        else:
            calls.append(_of_json(text[at:].partition(opening)[0].partition(closing)[0]))
        at = text.find(opening, at)
    return Said(content, calls)


def _ends(text: str, at: int, marks: tuple[str, ...]) -> bool:
    """Return whether the text ends here, or one of these marks follows."""
    rest = text[at:].lstrip()
    return not rest or rest.startswith(marks)


def _llama(text: str) -> Said:
    body = text.strip().removeprefix("<|python_tag|>").removesuffix("<|eom_id|>").strip()
    if not body.startswith("{"):
        return Said(text, [])
    found = list(_objects(body))
    is_call = text.strip().startswith("<|python_tag|>") or any(isinstance(one, dict) and "name" in one for one in found)
    if not is_call and re.match(r'\{\s*"(name|type)"', body) is None:
        return Said(text, [])
    return Said("", [_call(one) for one in found] or [_of_json(body)])


def _mistral(text: str) -> Said:
    content, mark, rest = text.partition("[TOOL_CALLS]")
    if not mark:
        return Said(text, [])
    if "[ARGS]" in rest and rest.lstrip()[:1] not in ("[", "{"):  # otherwise [ARGS] is part of an argument
        return Said(content, list(_with_args(mark + rest, mark)))
    try:
        found = json.loads(rest)
    except (ValueError, RecursionError) as error:
        return Said(content, [Call("", {}, f"the calls are not a JSON list: {error}")])
    return Said(content, [_call(one) for one in (found if isinstance(found, list) else [found])])


_BEGIN = "<｜tool▁call▁begin｜>"
_OPENED = re.compile(r"[^｜]*<｜tool▁sep｜>\s*([^\n｜]+)\n\s*(?:```json)?")
_CLOSED = re.compile(r"\s*(?:```)?\s*(?:<｜tool▁calls?▁(?:end|begin)｜>|\Z)")


def _with_args(text: str, mark: str) -> Iterator[Call]:
    """Yield the calls of a text like `[TOOL_CALLS]look[ARGS]{"at": "x"}[TOOL_CALLS]look[ARGS]{"at": "y"}`."""
    at = 0
    while at >= 0:
        at += len(mark)
        name, args, _ = text[at:].partition(mark)[0].partition("[ARGS]")
        found = _decoded(text, at + len(name) + len(args)) if args else None
        if found is not None and _ends(text, found[1], (mark,)):
            yield _call({"name": name.strip(), "arguments": found[0]})
            at = found[1]
        else:
            yield _named(name.strip(), text[at:].partition(mark)[0].partition("[ARGS]")[2])
        at = text.find(mark, at)


def _deepseek(text: str) -> Said:
    content, mark, rest = text.partition("<｜tool▁calls▁begin｜>")
    if not mark:
        content, mark, rest = text.partition("<｜tool▁call▁begin｜>")
        rest = mark + rest
    at, calls = rest.find(_BEGIN), list[Call]()
    while at >= 0:
        at += len(_BEGIN)
        part = rest[at:].partition(_BEGIN)[0].partition("<｜tool▁call▁end｜>")[0]
        head, _, body = part.partition("<｜tool▁sep｜>")
        name, _, arguments = body.strip().partition("\n")
        opened = _OPENED.match(rest, at)
        found = None if opened is None else _decoded(rest, opened.end())
        if opened is not None and found is not None and _CLOSED.match(rest, found[1]):
            calls.append(_call({"name": opened[1].strip(), "arguments": found[0]}))
            at = found[1]
        else:
            calls.append(_named((name or head).strip(), arguments.strip().removeprefix("```json").removesuffix("```")))
        at = rest.find(_BEGIN, at)
    return Said(content, calls)


def _harmony(text: str) -> Said:
    found = parts(text)
    calls = [
        Call(name, {}, "no <|message|> comes before the arguments") if body is None else _named(name, body)
        for name, body in ((one.recipient.removeprefix("functions."), one.text) for one in found if one.recipient)
    ]
    if not calls:
        return Said(text, [])
    return Said("", calls, "\n\n".join(one.text for one in found if one.text and not one.recipient))


FORMATS: Mapping[str, CallFormat] = {
    known.name: known
    for known in (
        CallFormat("harmony", ("<|channel|>", "<|call|>"), _harmony, channels=True),
        CallFormat("deepseek", ("<｜tool▁call▁begin｜>",), _deepseek),
        CallFormat("mistral", ("[TOOL_CALLS]",), _mistral),
        CallFormat("hermes", ("<tool_call>", "arguments"), _hermes),
        CallFormat("llama", ("tools", "parameters", "ipython"), _llama),
    )
}


def _named(name: str, arguments: str) -> Call:
    """Return a call whose name and arguments are separate."""
    try:
        return _call({"name": name, "arguments": json.loads(arguments)})
    except (ValueError, RecursionError) as error:
        return Call(name, {}, f"the arguments are not a JSON object: {error}")


def _of_json(text: str) -> Call:
    try:
        return _call(json.loads(text))
    except (ValueError, RecursionError) as error:
        name = re.search(r'"name"\s*:\s*"([^"\\]{1,64})"', text)
        return Call(name[1] if name else "", {}, f"the call is not a JSON object: {error}")


def _call(found: Any) -> Call:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Call("", {}, 'a call is a JSON object with "name" and "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # some models write them as text
        return _named(found["name"], arguments)
    if not isinstance(arguments, dict):
        return Call(found["name"], {}, "the arguments are not a JSON object")
    return Call(found["name"], arguments)


def _objects(text: str) -> Iterator[Any]:
    """Yield consecutive JSON objects, which may have semicolons between them; stop at the first other text."""
    at = 0
    while at < len(text) and (read := _decoded(text, at)):
        found, at = read
        yield found
        while at < len(text) and text[at] in "; \n":
            at += 1
