"""The agent of one trajectory, in the trajectory's own process: its requests, and its end.

    reset(row)       starts the agent; returns its first request, or its end
    step(...)        answers or refuses a request; returns the next one, or the end
    finish(...)      the same when a limit has ended the session: every further request is refused
    close()          last

The agent runs in the main thread, where signals and event loops work as in any program. Another thread serves the
trainer's requests.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.episodes.agents.answers import Answer
from posttrain.episodes.agents.endpoint import Endpoint
from posttrain.episodes.agents.requests import Asked, Refused, text_of
from posttrain.episodes.agents.setup import AgentSetup
from posttrain.episodes.conduct import as_reward, leaves_processes, start_random_numbers
from posttrain.errors import ConfigError
from posttrain.rewards.load import Target, load

NOWHERE = "http://127.0.0.1:9/v1"
"""The endpoint while the host imports the agent. A client that is made meanwhile reaches no server at all."""
LONGEST_COMPLAINT = 2000
"""Maximum characters shown from the standard error of a command."""


def setup_of(given: Mapping[str, Any]) -> AgentSetup:
    """Return the setup that `dataclasses.asdict` wrote as `given`."""
    return AgentSetup(**{**given, "function": None if given["function"] is None else Target(**given["function"])})


def prepare(setup: AgentSetup) -> None:
    """In the host, once: import the agent, and check its settings. ConfigError says what is wrong with them."""
    _point_to(url=NOWHERE, key="of no session", host=setup.host)
    Endpoint(setup.host, _nobody, sampling={}, ignores=False).close()
    if setup.function is None:
        if shutil.which(setup.command[0]) is None:
            raise ConfigError(
                given=f"agent.command = {setup.command[0]}, but there is no such program",
                allowed="a program and its arguments",
                fix="Set agent.command = [python, my_agent.py], for example.",
            )
        return
    function = load(setup.function)
    try:
        inspect.signature(function).bind({}, **_arguments(function, setup, "", "", 0))
    except TypeError as error:
        raise ConfigError(
            given=f"the agent {setup.function.name} cannot be called with a row and agent.settings: {error}",
            allowed="a function of the row, and of the settings if there are any; any function may also ask for "
            "base_url, api_key and seed",
            fix="Write def run(row): ..., or correct agent.settings.",
        ) from None


class AgentConduct:
    """The agent of one trajectory, and the requests that it has made."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup, self._seed = setup, 0
        self._row: dict[str, Any] | None = None
        self._changed = threading.Condition()
        self._waiting: deque[_Pending] = deque()
        self._pending: _Pending | None = None
        self._outcome: dict[str, Any] | BaseException | None = None

    def begin(self, seed: int) -> AgentConduct:
        """Take the seed of this trajectory. It seeds the modules that draw random numbers."""
        self._seed = seed
        return self

    # --- for the trainer ---------------------------------------------------------------------------------------------

    def reset(self, row: Mapping[str, Any], prompt: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Start the agent with the row. It does not see `prompt`, the row's prompt as messages: it writes its own."""
        del prompt
        with self._changed:
            self._row = dict(row)
            self._changed.notify_all()
        return self._next()

    def step(self, answer: Mapping[str, Any] | None = None, refusal: str = "") -> dict[str, Any]:
        self._tell(answer, Refused(refusal))
        return self._next()

    def finish(self, limit: str, answer: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """End the session at a limit, and return its reward. There is none if the agent raises after a refusal."""
        over = Refused(f"the session is over: it has reached {limit}", code="session_over")
        self._tell(answer, over)
        while True:
            try:
                event = self._next()
            except Exception:
                return {}
            if "request" not in event:
                return event
            self._tell(None, over)

    def close(self) -> dict[str, Any]:
        return {"leaves": leaves_processes()}

    def _tell(self, answer: Mapping[str, Any] | None, refusal: Refused) -> None:
        assert self._pending is not None, "only a request is answered"
        self._pending.reply(refusal if answer is None else Answer(**answer))
        self._pending = None

    def _next(self) -> dict[str, Any]:
        """Return the next request, or the end. Raises what the agent has raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None or self._waiting)
            if self._outcome is None:
                self._pending = self._waiting.popleft()
                return {"request": self._pending.asked.to_draw}
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    # --- for the agent -----------------------------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Answer:
        """Wait for the trainer's answer and return it. Raises `Refused`."""
        pending = _Pending(asked)
        with self._changed:
            self._waiting.append(pending)
            self._changed.notify_all()
        return pending.wait()

    def run(self) -> None:
        """Run the agent, from the trainer's first request to its end."""
        with self._changed:
            self._changed.wait_for(lambda: self._row is not None)
        try:
            outcome: dict[str, Any] | BaseException = _worth(self._perform())
        except BaseException as error:  # also SystemExit: an agent does not end the run
            outcome = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def _perform(self) -> Any:
        setup = self._setup
        start_random_numbers(self._seed)
        endpoint = Endpoint(setup.host, self.answer, sampling=setup.sampling, ignores=setup.ignores)
        endpoint.start()
        _point_to(url=endpoint.url, key=endpoint.token, host=setup.host)
        assert self._row is not None
        if setup.function is None:
            return _command(setup.command, self._row)
        function = _of_this_session(setup.function)
        found = function(self._row, **_arguments(function, setup, endpoint.url, endpoint.token, self._seed))
        if inspect.isawaitable(found):
            return asyncio.run(_awaited(found))
        return found


class _Pending:
    """A request that waits for its answer."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._there = threading.Event()
        self._found: Answer | Refused | None = None

    def reply(self, found: Answer | Refused) -> None:
        self._found = found
        self._there.set()

    def wait(self) -> Answer:
        self._there.wait()
        if isinstance(self._found, Refused):
            raise self._found
        assert self._found is not None
        return self._found


def _nobody(asked: Asked) -> Answer:
    raise Refused("there is no session", status=404)


async def _awaited(found: Any) -> Any:
    return await found


def _point_to(*, url: str, key: str, host: str) -> None:
    """Set the environment variables that give programs the endpoint of this session, without a proxy in between."""
    os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key}
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(dict.fromkeys([host, *filter(None, os.environ.get(name, "").split(","))]))


def _of_this_session(target: Target) -> Callable[..., Any]:
    """Import the agent's file again, so that a client made at import belongs to this session. The modules that the file
    imports are not imported again."""
    if target.path:
        sys.modules.pop(load(target).__module__, None)
    return load(target)


def _arguments(
    function: Callable[..., Any], setup: AgentSetup, base_url: str, api_key: str, seed: int
) -> dict[str, Any]:
    """Return the settings, and those of base_url, api_key and seed that the function has parameters for."""
    offered = {"base_url": base_url, "api_key": api_key, "seed": seed}
    named = inspect.signature(function).parameters
    return {**{name: value for name, value in offered.items() if name in named}, **setup.settings}


def _command(command: Sequence[str], row: Mapping[str, Any]) -> Any:
    """Run the command with the row as JSON on its standard input. Return the last line of its output, read as JSON."""
    done = subprocess.run(command, input=json.dumps(row).encode(), capture_output=True, check=False)
    if done.returncode:
        complaint = done.stderr.decode("utf-8", "replace").strip()[-LONGEST_COMPLAINT:]
        raise RuntimeError(f"{command[0]} ended with code {done.returncode}: {complaint}")
    last = done.stdout.strip().rpartition(b"\n")[2].decode("utf-8", "replace")
    try:
        return json.loads(last) if last else None
    except ValueError:
        raise ValueError(f"the last line of its output is not JSON: {last!r:.200}") from None


def _worth(found: Any) -> dict[str, Any]:
    """Return the outcome for an agent's return value: a number, None, or messages. TypeError for anything else.

    >>> _worth(1), _worth(None), _worth([{"role": "assistant", "content": "4"}])
    ({'done': True, 'reward': 1.0}, {'done': True}, {'done': True, 'messages': [{'role': 'assistant', 'content': '4'}]})
    """
    if found is None:
        return {"done": True}
    if isinstance(found, list | tuple):
        messages = [
            {"content": None, **one.model_dump(exclude_none=True)} if hasattr(one, "model_dump") else one
            for one in found
        ]
        if not all(map(_is_message, messages)):
            raise TypeError(
                f"the agent returned {found!r:.80}, but a list must hold messages: dicts with a role, and with content "
                "or tool_calls"
            )
        try:
            texts = [text_of(one.get("content"), f"message {place}") for place, one in enumerate(messages)]
        except Refused as refused:
            raise TypeError(f"the agent returned messages, and {refused}") from None
        return {
            "done": True,
            "messages": [{**one, "content": text} for one, text in zip(messages, texts, strict=True)],
        }
    return {"done": True, "reward": as_reward(found, "the agent", "a finite number, messages, or None")}


def _is_message(given: Any) -> bool:
    has_role = isinstance(given, Mapping) and isinstance(given.get("role"), str)
    return has_role and ("content" in given or "tool_calls" in given)
