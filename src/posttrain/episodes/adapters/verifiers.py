"""Environments of verifiers with several turns: `environment: verifiers:NAME`.

    data: {train: task:verifiers/wordle}
    environment: {function: verifiers:wordle, settings: {max_turns: 6}}
    rewards: [environment]

For verifiers 0.4 (verifiers_v1.py), NAME is an installed package with a Taskset and optionally an Env, and `settings`
are what verifiers reads from its block `env`. For verifiers 0.1.12 to 0.3 (verifiers_v0.py), NAME is a package with
`load_environment`, and `settings` are its arguments. The environment's own loop runs in the trajectory's process and
calls its model at an endpoint (asking.py), where the policy answers. So the environment's own tools, users, stops and
reward apply. Its metrics are in `environment/metrics/<name>`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from posttrain.episodes.adapters import verifiers_v0, verifiers_v1
from posttrain.episodes.adapters.asking import AgentLoop, Request
from posttrain.episodes.adapters.played import KEY, Played, Worth
from posttrain.errors import ConfigError
from posttrain.rewards.load import Target


def opened(target: Target, settings: Mapping[str, Any], apart: Callable[[Callable[[], Any]], Any]) -> type:
    """Return the class for an environment of verifiers. ConfigError if verifiers or the environment is missing, or if
    it has no tasks."""
    played = find_played(target.name, settings)
    with _refused(target.name):
        played.prepare()
    row = next(iter(played.rows()), None)
    if row is None:
        raise ConfigError(given=f"the environment verifiers:{target.name} has no tasks")
    return type("Verifiers", (FromVerifiers,), {"played": played, "schemas": apart(lambda: _schemas(played, row))})


def find_played(name: str, settings: Mapping[str, Any]) -> Played:
    """Return the environment, in the form that its package has. ConfigError if there is none or if it refuses the
    settings."""
    try:
        importlib.import_module("verifiers")
    except ImportError as error:
        raise ConfigError(
            given=f"the environment verifiers:{name} needs the package verifiers ({error})",
            allowed="your own environments, which do not need it",
            fix='pip install "posttrain[environments]"',
        ) from None
    with _refused(name):
        return verifiers_v0.find(name, settings) or verifiers_v1.find(name, settings)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Turn verifiers' errors about a name or settings into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            given=f"the environment verifiers:{name} cannot be made: {type(error).__name__}: {error}",
            allowed="an installed package with a Taskset (verifiers 0.4) or with load_environment (up to 0.3)",
            fix="Install it (`prime env install`, or pip), or put its folder on PYTHONPATH; if "
            "environment.settings were refused, correct them.",
        ) from error


def _schemas(played: Played, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools in the environment's first request."""

    async def first() -> Request | None:
        loop = AgentLoop(_with_key(played, row))
        try:
            return await loop.begin()
        finally:
            await loop.close()

    asked = asyncio.run(first())
    return [] if asked is None else asked.tools


def _with_key(played: Played, row: Mapping[str, Any]) -> Callable[[str, str], Any]:
    def play(url: str, key: str) -> Any:
        os.environ[KEY] = key
        return played.play(row, url)

    return play


class FromVerifiers:
    """An environment of verifiers with our interface."""

    played: Played
    schemas: list[dict[str, Any]]

    def __init__(self, **settings: Any) -> None:
        """Ignore the settings: `opened` has already used them."""
        self._loop: AgentLoop | None = None

    def tools(self) -> list[dict[str, Any]]:
        return self.schemas

    async def reset(self, row: Mapping[str, Any]) -> dict[str, Any]:
        self._loop = AgentLoop(_with_key(self.played, row))
        asked = await self._loop.begin()
        if asked is None:
            raise RuntimeError("the environment was done before it asked for an answer")
        return {"prompt": asked.messages}

    async def step(self, message: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        assert self._loop is not None, "reset comes first"
        asked = await self._loop.answer(message)
        return None if asked is None else asked.new

    async def reward(self) -> float:
        return (await self._worth()).reward

    async def metrics(self) -> Mapping[str, float]:
        return (await self._worth()).metrics

    async def close(self) -> None:
        if self._loop is not None:
            await self._loop.close()

    async def _worth(self) -> Worth:
        """Return the reward and metrics of the episode. If a limit of ours has cut it, they cover it up to the cut."""
        assert self._loop is not None, "reset comes first"
        await self._loop.cut()
        return self._loop.result
