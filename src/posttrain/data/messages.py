"""Convert chat messages of any layout to the format that chat templates read.

A message is `{"role", "content"}` with the roles system, user, assistant and tool. ShareGPT uses `from` and `value`
and its own roles. OpenAI writes the arguments of a tool call as JSON text, but templates need the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.data.dropped import Unusable, a_type
from posttrain.data.json_array import hostile_json, refuse_deep

Messages = list[dict[str, Any]]
Text = str | Messages
"""Plain text, or chat messages."""

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Name of a role in data -> its name in chat templates."""
CALLS = ("function_call", "tool_call")
"""Roles whose content is a tool call of the assistant, as JSON."""


def as_messages(value: Any, *, system: Any = None) -> Messages:
    """Convert a conversation to the format of templates. `system` becomes its first turn if it has no system turn.

    Raises `Unusable` with the reason if that is impossible.
    """
    if isinstance(value, str) and (value := messages_in(value)) is None:
        raise Unusable("text, not messages")
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise Unusable(f"{a_type(value)}, neither text nor messages")
    if not value:
        raise Unusable("no messages")
    messages: Messages = []
    for given in value:
        message = as_message(given)
        if _continues(messages, message):
            messages[-1]["tool_calls"] = message["tool_calls"]
        else:
            messages.append(message)
    check_turns(messages)
    return with_system(messages, system)


def with_system(messages: Messages, system: Any) -> Messages:
    """The messages with a system turn at the beginning, unless they have one or `system` is empty."""
    if system is not None and not isinstance(system, str):
        raise Unusable(f"system: {a_type(system)}, not text")
    if not system or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": system}, *messages]


def as_message(given: Any) -> dict[str, Any]:
    """Convert one turn. Other keys that a template may read (name, reasoning_content, ...) are kept."""
    if not isinstance(given, dict):
        raise Unusable("message without role and content")
    said = given.get("role") or given.get("from")
    content = given.get("content") if given.get("content") is not None else given.get("value")
    if said is None:
        raise Unusable("message without role and content")
    if not isinstance(said, str) or said not in ROLES:
        raise Unusable(f"unknown role {str(said)[:60]!r}")
    calls = content if said in CALLS else given.get("tool_calls") or given.get("function_call")
    if calls is None and content is None:
        raise Unusable("message without role and content")
    used = ("role", "from", "content", "value", "tool_calls", "function_call")
    rest = {key: item for key, item in given.items() if key not in used and item is not None}
    message = {"role": ROLES[said], "content": "" if said in CALLS else as_content(content)} | rest
    return message | ({"tool_calls": as_calls(calls)} if calls is not None else {})


def as_content(content: Any) -> str:
    """The text of a content: text, or OpenAI's list of parts if all of them are text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unusable(f"content is {a_type(content)}, not text")
    kinds = {str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in content}
    if kinds - {"text"}:
        raise Unusable(f"content with parts that are not text ({', '.join(sorted(kinds - {'text'}))[:60]})")
    return "".join(str(part.get("text") or "") for part in content)


def as_calls(given: Any) -> list[dict[str, Any]]:
    """Convert tool calls to `{"type": "function", "function": {"name", "arguments": object}}`.

    >>> as_calls('{"name": "add", "arguments": "[1, 2]"}')
    [{'type': 'function', 'function': {'name': 'add', 'arguments': [1, 2]}}]
    """
    found = _parsed(given, "tool call")
    calls = []
    for call in found if isinstance(found, list) else [found]:
        function = _parsed(call.get("function") or call, "tool call") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Unusable("tool call without a name")
        arguments = function.get("arguments", function.get("parameters"))
        arguments = {} if arguments in (None, "") else _parsed(arguments, "arguments of a tool call")
        kept = {"id": call["id"]} if call.get("id") is not None else {}
        calls.append(kept | {"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    if not calls:
        raise Unusable("no tool call in a turn that should hold one")
    return calls


def as_tools(given: Any) -> list[dict[str, Any]] | None:
    """Convert the tools of a conversation for the chat template, from a list or its JSON text; None if there are none.

    >>> as_tools('[{"name": "add"}]')
    [{'type': 'function', 'function': {'name': 'add'}}]
    """
    if given is None or given == "" or given == []:
        return None
    found = _parsed(given, "tools")
    found = [found] if isinstance(found, dict) else found
    if not isinstance(found, list):
        raise Unusable(f"tools: {a_type(found)}, not a list")
    tools = [tool if not isinstance(tool, dict) or "function" in tool else _tool(tool) for tool in found]
    named = [
        isinstance(tool, dict) and isinstance(tool["function"], dict) and isinstance(tool["function"].get("name"), str)
        for tool in tools
    ]
    if not all(named):
        raise Unusable("tools: one has no name")
    return tools or None


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {key: item for key, item in function.items() if key != "type"}}


def _parsed(given: Any, what: str) -> Any:
    if not isinstance(given, str):
        return given
    try:
        refuse_deep(given)
        return json.loads(given)
    except json.JSONDecodeError:
        raise Unusable(f"{what}: broken JSON") from None
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{what}: {hostile_json(error)}") from None


def _continues(messages: Messages, message: Mapping[str, Any]) -> bool:
    """Whether a message is a bare tool call after a text of the assistant. For templates the two are one turn."""
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        return False
    return message["role"] == "assistant" and "tool_calls" in message and not message["content"]


def check_turns(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise `Unusable` for turns that templates do not expect, or that teach nothing."""
    before = ""
    for message in messages:
        role, says_nothing = message["role"], not message["content"].strip()
        if role == "user" and says_nothing:
            raise Unusable("empty user turn")
        if role == "assistant" and says_nothing and not (message.get("tool_calls") or message.get("reasoning_content")):
            raise Unusable("empty assistant turn")
        if role == before == "user":
            raise Unusable("two user turns in a row")
        if role == "tool" and before not in ("assistant", "tool"):
            raise Unusable("tool turn that follows no assistant turn")
        before = role


# --- texts that are conversations ------------------------------------------------------------------------------------

_SAYS_ROLE = re.compile(rf"""(['"])(?:role|from)\1\s*:\s*(['"])(?:{"|".join(ROLES)})\2""")
_BEGINS = re.compile(r"""\[?\s*\{\s*(['"])(?:role|from|content|value)\1\s*:""")


def messages_in(text: str) -> list[Any] | None:
    """The messages that a text holds as JSON, as in a cell of CSV; None for any other text. Raises `Unusable` for
    messages in another notation, such as Python's.

    >>> messages_in('[{"role": "user", "content": "Hi!"}]'), messages_in('[{"from": 1990, "value": 3}]')
    ([{'role': 'user', 'content': 'Hi!'}], None)
    """
    text = text.strip()
    if not text.startswith(("[", "{")) or not text.endswith(("]", "}")) or not _SAYS_ROLE.search(text):
        return None
    try:
        found = _parsed(text, "messages")
    except Unusable:
        if _BEGINS.match(text):
            raise Unusable("messages as text that is not JSON: write JSON, with json.dumps") from None
        return None
    turns = [found] if isinstance(found, dict) else found
    return turns if all(map(_is_turn, turns)) else None


def _is_turn(value: Any) -> bool:
    said = ("content", "value", "tool_calls", "function_call")
    return isinstance(value, dict) and bool({"role", "from"} & set(value)) and any(key in value for key in said)


_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):")


def is_dialogue(text: Any) -> bool:
    """Whether a text is a conversation in the format of HH-RLHF: its turns begin with Human: or Assistant: after an
    empty line."""
    return isinstance(text, str) and text.startswith("\n\nHuman:")


def as_dialogue(text: str) -> Messages:
    r"""The turns of a text in the format of HH-RLHF. An empty assistant turn at the end is left out.

    >>> [m["content"] for m in as_dialogue("\n\nHuman: Hi!\n\nAssistant: Hello.\n\nHuman: Bye.\n\nAssistant:")]
    ['Hi!', 'Hello.', 'Bye.']
    """
    _, *parts = _TURN.split(text)
    roles = ["user" if speaker == "Human" else "assistant" for speaker in parts[::2]]
    messages = [{"role": r, "content": said.strip()} for r, said in zip(roles, parts[1::2], strict=True)]
    return messages[:-1] if messages and not messages[-1]["content"] and roles[-1] == "assistant" else messages


def implicit_prompt(chosen: Text, rejected: Text) -> tuple[Text, Text, Text]:
    """The common beginning of two answers, and the rest of each. Messages are compared as a whole, and a common text
    ends at the end of a word.

    >>> implicit_prompt("Q: why? A: because", "Q: why? A: beats me")
    ('Q: why? A:', ' because', ' beats me')
    """
    if isinstance(chosen, str) or isinstance(rejected, str):
        assert isinstance(chosen, str)
        assert isinstance(rejected, str)
        same = _common(chosen, rejected)
        words_end = (n for n in range(same, 0, -1) if chosen[n : n + 1].isspace() and rejected[n : n + 1].isspace())
        same = next(words_end, same)
        return chosen[:same], chosen[same:], rejected[same:]
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    return chosen[:same], chosen[same:], rejected[same:]


def implicit_dialogue(chosen: str, rejected: str) -> tuple[str, str, str]:
    r"""The common beginning and the rest of two texts in the format of HH-RLHF: an answer begins after Assistant:.

    >>> implicit_dialogue("\n\nHuman: Why?\n\nAssistant: I am x", "\n\nHuman: Why?\n\nAssistant: I am y")
    ('\n\nHuman: Why?\n\nAssistant:', ' I am x', ' I am y')
    """
    mark = "\n\nAssistant:"
    same = chosen[: _common(chosen, rejected)].rfind(mark)
    same = 0 if same < 0 else same + len(mark)
    return chosen[:same], chosen[same:], rejected[same:]


def joined(prompt: Messages, begin: Messages) -> Messages:
    """The turns of a prompt with the turns `begin` with which its answers begin: these may repeat the prompt, its last
    turns, or nothing of it. No turn is lost. Raises `Unusable` if they contradict each other."""
    if any(all(map(_same, prompt, begin[n:])) for n in range(len(begin) - len(prompt) + 1)):
        return begin
    length = min(len(prompt), len(begin))
    same = next((n for n in range(length, 0, -1) if all(map(_same, prompt[-n:], begin))), 0)
    whole = [*prompt, *begin[same:]]
    repeats = not same and any(_same(one, other) for one in prompt for other in begin)
    try:
        check_turns(whole)
    except Unusable:
        repeats = True
    if repeats or any(message["role"] == "system" for message in whole[1:]):
        raise Unusable("chosen and rejected begin with turns that do not follow the prompt")
    return whole


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two turns say the same, apart from white space."""
    sides = [(turn["role"], turn["content"].split(), turn.get("tool_calls")) for turn in (one, other)]
    return sides[0] == sides[1]


def _common(one: str, other: str) -> int:
    differ = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))
