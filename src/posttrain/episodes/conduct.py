"""The environment and the tools of one trajectory, in a process of their own.

An environment is a class. Each trajectory makes one object of it with the settings, and calls:

    reset(row) -> messages      at the start, with the row of the data. The messages follow the row's prompt; None: no
                                messages; {"prompt": messages}: they replace the prompt. A parameter `seed` receives a
                                seed of the trajectory's own, a parameter `prompt` the messages of the prompt.
    step(message) -> messages   after each turn of the policy; None: the conversation is over. Without this method, a
                                turn that calls no tool ends the trajectory
    tools() -> functions        functions that the policy may call, such as methods: called once, before `reset`
    turn_reward() -> number     after each step: the reward of the turn; None or no such method: no reward of its own
    reward() -> number          once, at the end: the reward of the trajectory, in addition to its turns' rewards; None
                                or no such method: no such reward
    metrics() -> {name: number} at the end, with the reward
    close()                     last

All methods but one of `step` and `tools` may be missing, and all but `tools` may be async. Messages are a text (one
message of the user), a dict with role and content, or a list of these. A turn that calls tools is answered by their
results and never reaches `step`. An environment that answers calls itself returns their schemas from `tools()` instead
of functions. Then `step` sees such turns, too, with their `tool_calls`.
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

from posttrain.episodes.tools import UNKNOWN, as_text, by_name, schema_of
from posttrain.errors import ConfigError
from posttrain.rewards.calls import plain

ROLES = ("user", "tool", "system")
"""Roles of the messages that an environment may return."""


class Conduct:
    """The environment and tools of one trajectory; answers the trainer's requests in turn."""

    def __init__(
        self,
        environment: Callable[..., Any] | None,
        settings: Mapping[str, Any],
        tools: Mapping[str, Callable[..., Any]],
        *,
        most_characters: int,
        seed: int,
        tell: Callable[[tuple[dict[str, Any], bool]], None] = lambda result: None,
    ) -> None:
        """`seed` is the seed of this trajectory. It seeds the modules that draw random numbers. `tell` is called with
        the result of each call of a turn but the last, as soon as it is there."""
        start_random_numbers(seed)
        self._runner = asyncio.Runner()
        self._seed, self._most, self._tell = seed, most_characters, tell
        self._environment = None if environment is None else environment(**settings)
        offered = [] if self._environment is None else _offered(self._environment)
        self._schemas = [one for one in offered if isinstance(one, Mapping)]
        if self._schemas and tools:
            raise _both_answer(self._schemas[0], tools)
        self._own = by_name([one for one in offered if callable(one)])
        self._tools = {**tools, **self._own}

    def offers(self) -> dict[str, Any]:
        """Return the schemas of the environment's own tools, and whether it answers turns that call none."""
        schemas = [*map(dict, self._schemas), *(schema_of(tool, name) for name, tool in self._own.items())]
        return {"schemas": schemas, "speaks": hasattr(self._environment, "step")}

    def reset(self, row: Mapping[str, Any], prompt: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the messages that follow the prompt, or replace it."""
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
        """Return the reply, or that the trajectory is over, and which calls failed.

        `calls` are (name, arguments, problem).
        """
        if calls and not self._schemas and self._tools:
            results = list[tuple[dict[str, Any], bool]]()
            for call in calls:
                results.append(self._result(*call))
                if len(results) < len(calls):  # if a later call hangs or ends this process, this result is kept
                    self._tell(results[-1])
            return {"messages": [message for message, _ in results], "errors": [wrong for _, wrong in results]}
        step = getattr(self._environment, "step", None)
        if step is None:
            return {"done": True, **self.finish()}
        answer = self._call(step, _told(message, calls) if self._schemas else dict(message))
        worth = self._worth("turn_reward")
        if answer is None:
            return worth | {"done": True, **self.finish()}
        messages = as_messages(answer)
        if not messages:
            raise TypeError("step returned no message: it must return at least one, or None at the end")
        return worth | {"messages": messages}

    def finish(self) -> dict[str, Any]:
        """Return the reward of the trajectory, and the environment's metrics that are finite numbers."""
        found = self._worth("reward")
        if metrics := self._call(getattr(self._environment, "metrics", None)):
            given = {str(name): float(value) for name, value in metrics.items() if value is not None}
            found["metrics"] = {name: value for name, value in given.items() if math.isfinite(value)}
        return found

    def _worth(self, method: str) -> dict[str, Any]:
        given = self._call(getattr(self._environment, method, None))
        return {} if given is None else {method: as_reward(given, f"{method}()")}

    def close(self) -> dict[str, Any]:
        """Close the environment, and return whether it leaves child processes behind."""
        self._call(getattr(self._environment, "close", None))
        return {"leaves": leaves_processes()}

    def _call(self, function: Callable[..., Any] | None, *arguments: Any, **named: Any) -> Any:
        """Call a function, also if it is async; return None if it is None."""
        if function is None:
            return None
        found = function(*arguments, **named)
        return self._runner.run(_awaited(found)) if inspect.isawaitable(found) else found

    def _result(self, name: str, arguments: Mapping[str, Any], problem: str) -> tuple[dict[str, Any], bool]:
        """Return the result of a call as a message, and whether the call failed."""
        if not problem and name not in self._tools:
            problem = f"there is no tool {name!r}; there are {', '.join(self._tools)}"
        try:
            text = f"error: {problem}" if problem else as_text(self._call(self._tools[name], **arguments), self._most)
        except BaseException as error:  # also sys.exit(): a tool does not end the trajectory
            problem = text = as_text(f"error: {type(error).__name__}: {error}", self._most)
        known = name if name in self._tools else UNKNOWN
        return {"role": "tool", "name": known, "content": text}, bool(problem)


def _offered(environment: Any) -> list[Any]:
    """Return the environment's tools: functions, or schemas of calls that its `step` answers."""
    found = list(environment.tools()) if callable(getattr(environment, "tools", None)) else []
    if any(map(callable, found)) and not all(map(callable, found)):
        raise TypeError(
            "tools() returned both functions and schemas: an environment must answer all calls itself, or none"
        )
    return found


def _both_answer(schema: Mapping[str, Any], tools: Mapping[str, Any]) -> ConfigError:
    name = schema.get("function", schema).get("name")
    return ConfigError(
        given=f"tools ({', '.join(tools)}), and an environment that answers calls itself: its tools() returned the "
        f"schema of {name}, so that its step receives all calls",
        allowed="tools of the run, or an environment that answers calls",
        fix="Remove tools from the config, or let tools() return functions.",
    )


def _told(message: Mapping[str, Any], calls: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a turn for an environment that answers calls itself. If a call cannot be read, its problem replaces its
    arguments."""
    made = [
        {"type": "function", "id": f"call{n:05d}", "function": {"name": name, "arguments": problem or dict(arguments)}}
        for n, (name, arguments, problem) in enumerate(calls)
    ]
    return {**message, **({"tool_calls": made} if made else {})}


def start_random_numbers(seed: int) -> None:
    """Seed the random numbers of the loaded modules that draw them."""
    random.seed(seed)
    if "numpy" in sys.modules:  # the host imports it if it is installed
        sys.modules["numpy"].random.seed(seed % 2**32)


def leaves_processes() -> bool:
    """Return whether this process has children that have not been waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


async def _awaited(found: Any) -> Any:
    return await found


def as_reward(given: Any, giver: str, allowed: str = "a finite number or None") -> float:
    """Return what `giver` returned as a reward. TypeError or ValueError if it is not a finite number."""
    wrong = f"{giver} returned {given!r:.80}, but it must return {allowed}"
    try:
        number = plain(given)  # an array or a tensor may hold text, too
        if not hasattr(number, "__float__"):  # float would read a number in a text
            raise TypeError(wrong)
        reward = float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise TypeError(wrong) from None
    if not math.isfinite(reward):
        raise ValueError(wrong)
    return reward


def as_messages(given: Any, roles: Sequence[str] = ROLES) -> list[dict[str, Any]]:
    """Return an environment's output as a list of messages. Raises TypeError if it is not one.

    >>> as_messages("warmer"), as_messages(None)
    ([{'role': 'user', 'content': 'warmer'}], [])
    """
    if given is None:
        return []
    found, several = [], isinstance(given, list | tuple)
    for one in given if several else [given]:
        message = {"role": "user", "content": one} if isinstance(one, str) else one
        if not _is_message(message, roles):
            rewarded = ". turn_reward() returns the reward of a turn" if isinstance(one, int | float) else ""
            raise TypeError(
                f"{one!r:.80}{f' in {given!r:.80}' if several else ''} is not a message: it must be a text, or a dict "
                f"with content and a role of {', '.join(roles)}{rewarded}"
            )
        content = message.get("content")
        text = as_text("" if content is None else content, sys.maxsize)
        found.append({**message, "content": text})
    return found


def _is_message(given: Any, roles: Sequence[str]) -> bool:
    """Return whether it is a dict with an allowed role and content, or with calls of the assistant instead."""
    return isinstance(given, Mapping) and given.get("role") in roles and ("content" in given or "tool_calls" in given)
