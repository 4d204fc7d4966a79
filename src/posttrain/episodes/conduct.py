"""One trajectory's environment and tools, in the process that is theirs alone.

An environment is a class. It is made for each trajectory with its settings, and asked:

    reset(row) -> messages      at the start, with the row of the data; what it returns follows the row's prompt, None
                                is nothing, {"prompt": messages} stands in its place. One that has a parameter `seed`
                                gets a number of the trajectory's own, one with `prompt` the messages of the prompt.
    step(message) -> messages   after each turn of the policy; None: the conversation is over. Without this method a
                                turn that calls no tool ends it
    tools() -> functions        that the policy may call, such as methods of its own: asked once, before `reset`
    turn_reward() -> number     after each step: what the turn was worth; None or no such method: nothing of its own
    reward() -> number          once, at the end: what the whole was worth beside that; None or no such method: nothing
    metrics() -> {name: number} beside it
    close()                     at the very end

Each but `step` or `tools` may be missing, and each but `tools` may be async. Messages are a text, which is one message
of the user, a dict with role and content, or a list of these. A turn that calls tools is answered by their results, and
never reaches `step`. An environment that answers calls itself offers their schemas in place of functions: then `step`
sees such turns, too, with their `tool_calls`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.episodes.tools import UNKNOWN, as_text, schema_of

ROLES = ("user", "tool", "system")
"""Roles of the messages that an environment may return."""


class Conduct:
    """The requests of a trajectory, one after the other."""

    def __init__(
        self,
        environment: Callable[..., Any] | None,
        settings: Mapping[str, Any],
        tools: Mapping[str, Callable[..., Any]],
        *,
        most_characters: int,
        seed: int,
    ) -> None:
        """`seed` is that of this trajectory: modules that draw random numbers start from it."""
        start_random_numbers(seed)
        self._runner = asyncio.Runner()
        self._seed, self._tools, self._most = seed, tools, most_characters
        self._environment = None if environment is None else environment(**settings)
        offered = [] if self._environment is None else _offered(self._environment)
        self._schemas = [one for one in offered if isinstance(one, Mapping)]
        self._own = {one.__name__: one for one in offered if callable(one)}
        self._tools = {**tools, **self._own}

    def offers(self) -> dict[str, Any]:
        """Schemas of the environment's own tools, and whether it answers turns that call none."""
        schemas = [*map(dict, self._schemas), *(schema_of(tool, name) for name, tool in self._own.items())]
        return {"schemas": schemas, "speaks": hasattr(self._environment, "step")}

    def reset(self, row: Mapping[str, Any], prompt: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The messages that follow the prompt, or replace it."""
        reset = getattr(self._environment, "reset", None)
        if reset is None:
            return {"messages": []}
        known = {"seed": self._seed, "prompt": [dict(message) for message in prompt]}
        asked = {name: value for name, value in known.items() if name in inspect.signature(reset).parameters}
        given = self._call(reset, dict(row), **asked)
        if isinstance(given, Mapping) and "prompt" in given:
            return {"messages": [], "prompt": as_messages(given["prompt"], roles=(*ROLES, "assistant"))}
        return {"messages": as_messages(given)}

    def step(self, message: Mapping[str, Any], calls: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The reply, whether it is over, and how the calls went; `calls` are (name, arguments, problem)."""
        if calls and not self._schemas and self._tools:
            results = [self._result(*call) for call in calls]
            return {"messages": [message for message, _ in results], "errors": [wrong for _, wrong in results]}
        step = getattr(self._environment, "step", None)
        if step is None:
            return {"done": True, **self.finish()}
        answer = self._call(step, _told(message, calls) if self._schemas else dict(message))
        worth = self._worth("turn_reward")
        return worth | ({"messages": as_messages(answer)} if answer is not None else {"done": True, **self.finish()})

    def finish(self) -> dict[str, Any]:
        """The reward of the whole, and what was measured."""
        found = self._worth("reward")
        if metrics := self._call(getattr(self._environment, "metrics", None)):
            found["metrics"] = {str(name): float(value) for name, value in metrics.items() if value is not None}
        return found

    def _worth(self, method: str) -> dict[str, Any]:
        given = self._call(getattr(self._environment, method, None))
        if given is None:
            return {}
        reward = float(given)
        if not math.isfinite(reward):
            raise ValueError(f"{method}() returned {given}, but a reward must be a finite number or None")
        return {method: reward}

    def close(self) -> dict[str, Any]:
        """Whether processes are left that the environment has started."""
        self._call(getattr(self._environment, "close", None))
        return {"leaves": leaves_processes()}

    def _call(self, function: Callable[..., Any] | None, *arguments: Any, **named: Any) -> Any:
        """The same for functions that are async; None of none."""
        if function is None:
            return None
        found = function(*arguments, **named)
        return self._runner.run(_awaited(found)) if inspect.isawaitable(found) else found

    def _result(self, name: str, arguments: Mapping[str, Any], problem: str) -> tuple[dict[str, Any], bool]:
        """The result of a call as a message, and whether it came to nothing."""
        if not problem and name not in self._tools:
            problem = f"there is no tool {name!r}; there are {', '.join(self._tools)}"
        try:
            text = f"error: {problem}" if problem else as_text(self._call(self._tools[name], **arguments), self._most)
        except BaseException as error:  # sys.exit() too: a tool does not end the trajectory
            problem = text = as_text(f"error: {type(error).__name__}: {error}", self._most)
        known = name if name in self._tools else UNKNOWN
        return {"role": "tool", "name": known, "content": text}, bool(problem)


def _offered(environment: Any) -> list[Any]:
    """Its tools: functions, or schemas of calls that its `step` answers."""
    found = list(environment.tools()) if callable(getattr(environment, "tools", None)) else []
    if any(map(callable, found)) and not all(map(callable, found)):
        raise TypeError(
            "tools() returned both functions and schemas: an environment must answer all calls itself, or none"
        )
    return found


def _told(message: Mapping[str, Any], calls: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A turn for an environment that answers calls itself; what cannot be read stands in place of the arguments."""
    made = [
        {"type": "function", "id": f"call{n:05d}", "function": {"name": name, "arguments": problem or dict(arguments)}}
        for n, (name, arguments, problem) in enumerate(calls)
    ]
    return {**message, **({"tool_calls": made} if made else {})}


def start_random_numbers(seed: int) -> None:
    """Seeds the random numbers of the modules that draw some."""
    random.seed(seed)
    if "numpy" in sys.modules:  # the host has imported it where there is one
        sys.modules["numpy"].random.seed(seed % 2**32)


def leaves_processes() -> bool:
    """Has this process children that have not been waited for?"""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


async def _awaited(found: Any) -> Any:
    return await found


def as_messages(given: Any, roles: Sequence[str] = ROLES) -> list[dict[str, Any]]:
    """The output of an environment as messages. Raises TypeError if it is not one.

    >>> as_messages("warmer"), as_messages(None)
    ([{'role': 'user', 'content': 'warmer'}], [])
    """
    if given is None:
        return []
    found = []
    for one in given if isinstance(given, list | tuple) else [given]:
        message = {"role": "user", "content": one} if isinstance(one, str) else one
        if not isinstance(message, Mapping) or message.get("role") not in roles:
            raise TypeError(
                f"{one!r:.80} is not a message: it must be a text, or a dict with content and a role of "
                f"{', '.join(roles)}"
            )
        content = message.get("content")
        text = as_text("" if content is None else content, sys.maxsize)
        found.append({**message, "content": text})
    return found
