"""Formats of tool calls in the text of a policy, for the big model families, recognised from the chat template.

    hermes     <tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>          Hermes, Qwen
    llama      {"name": "look", "parameters": {"at": "x"}}, the whole turn                 Llama 3
    mistral    [TOOL_CALLS][{"name": "look", "arguments": {"at": "x"}}]
    deepseek   <｜tool▁call▁begin｜>function<｜tool▁sep｜>look ```json {"at": "x"} ```<｜tool▁call▁end｜>
    harmony    <|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x"}<|call|>        gpt-oss

Text that begins as a call but cannot be read is also a call: its result says what is wrong with it. Text before and
behind calls is kept. Calls in the reasoning of a turn are thoughts, and not made. No mark tells a call of Llama 3 from
an answer in JSON: a call is an object with "name" and "parameters" (or "arguments"), or of the type "function", or with
the name of a tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
    names: frozenset[str] | None = None
    """Names of which a tool must have one, or else the text is an answer; None: the calls are calls in any case."""

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

    def read(self, text: str, tools: Collection[str] = ()) -> Said:
        """Return the text and calls of a turn. `text` includes special tokens except the one that ends the turn;
        `tools` are the names of the tools."""
        begin, end = (0, len(text)) if self.channels else _spoken(text)
        found = self.find(text[begin:end])
        if not found.calls or (found.names is not None and found.names.isdisjoint(tools)):
            return Said(text, [])
        content = _beside(text[:begin] + found.content, text[end:]).strip()
        answer = None if self.channels else content  # the text of a turn in channels never holds its calls
        if not found.readable:
            return Said(text, found.calls, answer=answer)
        return found._replace(content=content, answer=answer, names=None)


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
        read = [(one.name, one.arguments) for one in found.read(turn, [name]).calls]
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


def _beside(before: str, *behind: str) -> str:
    """Join the texts around calls. Line breaks keep two numbers from becoming one."""
    return "\n".join([before.rstrip(), *(text.strip() for text in behind if text.strip())])


_CLOSED_HERMES = re.compile(r"\s*(?:</tool_call>)?")


def _hermes(text: str) -> Said:
    opening, closing = "<tool_call>", "</tool_call>"
    end, calls, texts = 0, list[Call](), list[str]()
    while (begin := text.find(opening, end)) >= 0:
        texts.append(text[end:begin])
        at = begin + len(opening)
        found = _decoded(text, at)
        if found is not None and _ends(text, found[1], (closing, opening)):
            calls.append(_call(found[0]))
            end = found[1]
        else:
            body = text[at:].partition(opening)[0].partition(closing)[0]
            calls.append(_of_json(body))
            end = at + len(body)
        if closed := _CLOSED_HERMES.match(text, end):
            end = closed.end()
    return Said(_beside(*texts, text[end:]), calls)


def _ends(text: str, at: int, marks: tuple[str, ...]) -> bool:
    """Return whether the text ends here, or one of these marks follows."""
    rest = text[at:].lstrip()
    return not rest or rest.startswith(marks)


_ONE_MORE = re.compile(r"[\s,;]*\{")
_BROKEN_LLAMA = re.compile(r'\{\s*("type"\s*:\s*"function"|"(name|type)".*"(parameters|arguments)"\s*:)', re.DOTALL)
_BEGUN_LLAMA = re.compile(r'\{\s*"name"\s*:\s*"([^"]*)"')


def _llama(text: str) -> Said:
    body = text.strip().removeprefix("<|python_tag|>").removesuffix("<|eom_id|>").strip()
    if not body.startswith("{"):
        return Said(text, [])
    found, rest = _objects(body)
    calls, begun = [_call(one) for one in found], _BEGUN_LLAMA.match(rest)
    is_certain = text.strip().startswith("<|python_tag|>") or any(map(_is_call, found)) or _BROKEN_LLAMA.match(rest)
    names = None if is_certain else frozenset[str]([*_names_in(found), *([begun[1]] if begun else [])])
    if _ONE_MORE.match(rest):
        return Said("", [*calls, _of_json(rest)], names=names)
    return Said(rest, calls, names=names)


def _is_call(found: Any) -> bool:
    """Return whether a JSON value is a call of Llama 3, whatever the names of the tools, and no answer."""
    if not isinstance(found, dict):
        return False
    return found.get("type") == "function" or ("name" in found and bool({"parameters", "arguments"} & found.keys()))


def _names_in(found: Sequence[Any]) -> list[str]:
    return [one["name"] for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


_FURTHER_MISTRAL = re.compile(r"\s*[][{},;]|.*\[ARGS\]", re.DOTALL)
"""What is no text behind a call, but more of the calls, in another form than expected."""


def _mistral(text: str) -> Said:
    mark = "[TOOL_CALLS]"
    end, calls, texts = 0, list[Call](), list[str]()
    while (begin := text.find(mark, end)) >= 0:
        texts.append(text[end:begin])
        at = begin + len(mark)
        body = text[at:].partition(mark)[0]
        name, args, _ = body.partition("[ARGS]")
        if not args or name.lstrip()[:1] in ("[", "{"):  # [ARGS] is part of an argument
            name = args = ""
        head = len(name + args)
        found = _decoded(text, at + head)
        if found is None or _FURTHER_MISTRAL.match(text[found[1] :].partition(mark)[0]):
            calls.append(_named(name.strip(), body[head:]) if args else _of_json(body))
            end = at + len(body)
        else:
            made, end = found
            if args:
                made = {"name": name.strip(), "arguments": made}
            calls += map(_call, made if isinstance(made, list) else [made])
    return Said(_beside(*texts, text[end:]), calls)


_BEGIN = "<｜tool▁call▁begin｜>"
_OPENED = re.compile(r"[^｜]*<｜tool▁sep｜>\s*([^\n｜]+)\n\s*(?:```json)?")
_CLOSED = re.compile(r"\s*(?:```)?\s*(?=<｜tool▁calls?▁(?:end|begin)｜>|\Z)")
_MARK = re.compile(r"<｜tool▁calls?▁(?:end|begin)｜>|<(?:｜[^｜]*｜?)?\Z")  # a limit may cut the last one


def _deepseek(text: str) -> Said:
    end, calls, texts = 0, list[Call](), list[str]()
    while (begin := text.find(_BEGIN, end)) >= 0:
        texts.append(_MARK.sub("", text[end:begin]))
        at = begin + len(_BEGIN)
        opened = _OPENED.match(text, at)
        found = None if opened is None else _decoded(text, opened.end())
        closed = None if found is None else _CLOSED.match(text, found[1])
        if opened is not None and found is not None and closed is not None:
            calls.append(_call({"name": opened[1].strip(), "arguments": found[0]}))
            end = closed.end()
        else:
            part = text[at:].partition(_BEGIN)[0].partition("<｜tool▁call▁end｜>")[0]
            head, _, body = part.partition("<｜tool▁sep｜>")
            name, _, arguments = body.strip().partition("\n")
            calls.append(_named((name or head).strip(), arguments.strip().removeprefix("```json").removesuffix("```")))
            end = at + len(part)
    return Said(_beside(*texts, _MARK.sub("", text[end:])), calls)


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


def _objects(text: str) -> tuple[list[Any], str]:
    """Return consecutive JSON objects, which may have semicolons between them, and the text behind them."""
    at, found = 0, list[Any]()
    while text.startswith("{", at) and (read := _decoded(text, at)):
        one, at = read
        found.append(one)
        while at < len(text) and text[at] in "; \n":
            at += 1
    return found, text[at:]
