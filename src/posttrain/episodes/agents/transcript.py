"""The requests and answers of a session, and the ids from which a new request continues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
CONTINUES = ("user", "tool")
"""Roles whose messages the bridge can write after a turn."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A request, or a request and its answer."""

    messages: tuple[Message, ...]
    tools: str
    """The tools of the request, as JSON: a template writes them into the context."""
    ids: tuple[int, ...]
    """The ids that the policy has seen and sampled so far."""
    answered: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """A point from which a request continues."""

    ids: tuple[int, ...]
    newest: bool
    """Whether it is the end of the trajectory, so that new ids are appended to it."""
    more: Sequence[Message]
    """The messages that follow it; none if the same request came again."""


class Transcript:
    """The points of a session. They form a tree: clients repeat requests, go back, and hold several conversations."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def find(self, messages: Sequence[Message], tools: Sequence[Message]) -> Found | None:
        """Return the longest known part of a conversation that this one continues; the newest of equally long ones."""
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

    def outside(self, messages: Sequence[Message]) -> list[int]:
        """Return the indices of the messages that are not answers of the policy."""
        answers = {_compared(point.messages[-1]) for point in self._points if point.answered}
        said = [message["role"] == "assistant" and _compared(message) in answers for message in messages]
        return [place for place, is_answer in enumerate(said) if not is_answer]

    def ask(self, messages: Sequence[Message], tools: Sequence[Message], ids: Sequence[int]) -> None:
        """Record a request and the ids of its context."""
        self._points.append(Point(messages=tuple(messages), tools=_json(tools), ids=tuple(ids), answered=False))

    def answer(self, message: Message, drawn: Sequence[int]) -> None:
        """Record the answer to the newest request."""
        asked = self._points[-1]
        own = {"messages": (*asked.messages, message), "ids": (*asked.ids, *drawn)}
        self._points.append(Point(**own, tools=asked.tools, answered=True))


def _goes_on(point: Point, messages: Sequence[Message]) -> bool:
    more = messages[len(point.messages) :]
    return bool(more) == point.answered and all(message["role"] in CONTINUES for message in more)


def _compared(message: Message) -> tuple[Any, ...]:
    """Return the parts of a message that must agree. Clients trim the model's text, and rename the ids of calls."""
    if message["role"] != "assistant":
        return message["role"], message["content"], message.get("tool_call_id"), message.get("name")
    calls = [(one["function"]["name"], _json(one["function"]["arguments"])) for one in message.get("tool_calls", ())]
    return "assistant", message["content"].strip(), *calls


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)
