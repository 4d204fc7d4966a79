"""The questions and answers of a session, and the ids from which a request continues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
CONTINUES = ("user", "tool")
"""Roles whose messages the bridge writes behind a turn."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A request, or a request and the answer that it got."""

    messages: tuple[Message, ...]
    tools: str
    """The tools of the request, as JSON: a template writes them into the context."""
    ids: tuple[int, ...]
    """The ids that the policy has seen and drawn so far."""
    answered: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """A point from which a request goes on."""

    ids: tuple[int, ...]
    newest: bool
    """It is where the trajectory stands: what comes is appended to it."""
    more: Sequence[Message]
    """Messages behind it; none where the same request came once more."""


class Transcript:
    """A tree, in fact: clients ask twice, go back, and hold several conversations."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def find(self, messages: Sequence[Message], tools: Sequence[Message]) -> Found | None:
        """The longest stretch of a conversation from which this one goes on, of equally long ones the newest."""
        asked, named = [_compared(message) for message in messages], _json(tools)
        best: Point | None = None
        for point in self._points:
            begin = [_compared(message) for message in point.messages]
            longer = best is None or len(begin) >= len(best.messages)
            if longer and point.tools == named and asked[: len(begin)] == begin and _goes_on(point, messages):
                best = point
        if best is None:
            return None
        newest = best is self._points[-1] and best.answered
        return Found(ids=best.ids, newest=newest, more=messages[len(best.messages) :])

    def ask(self, messages: Sequence[Message], tools: Sequence[Message], ids: Sequence[int]) -> None:
        """A request, and the ids that it came to."""
        self._points.append(Point(messages=tuple(messages), tools=_json(tools), ids=tuple(ids), answered=False))

    def answer(self, message: Message, drawn: Sequence[int]) -> None:
        """What the newest request got."""
        asked = self._points[-1]
        own = {"messages": (*asked.messages, message), "ids": (*asked.ids, *drawn)}
        self._points.append(Point(**own, tools=asked.tools, answered=True))


def _goes_on(point: Point, messages: Sequence[Message]) -> bool:
    more = messages[len(point.messages) :]
    return bool(more) == point.answered and all(message["role"] in CONTINUES for message in more)


def _compared(message: Message) -> tuple[Any, ...]:
    """What has to be the same; clients trim what a model said, and give calls other identifiers."""
    if message["role"] != "assistant":
        return message["role"], message["content"], message.get("tool_call_id"), message.get("name")
    calls = [(one["function"]["name"], _json(one["function"]["arguments"])) for one in message.get("tool_calls", ())]
    return "assistant", message["content"].strip(), *calls


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)
