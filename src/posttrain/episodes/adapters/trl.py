"""Environments of TRL's `environment_factory`: `environment: trl:my_env.py:Game`.

TRL (1.16) makes an environment with `factory()` and calls

    reset(**row) -> str | None      with all columns; the text is appended to the last message of the prompt
    every other public method       a tool, described by its signature and docstring
    get_reward() -> float           once, at the end; may be missing, and may be async

A turn without a call ends the trajectory. The value of `get_reward` is the reward `environment`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.errors import ConfigError
from posttrain.rewards.load import Target, load

_NOT_TOOLS = ("reset", "get_reward")


def opened(target: Target, settings: Mapping[str, Any], apart: Callable[[Callable[[], Any]], Any]) -> type:
    """Return a class for TRL's class or factory function. ConfigError if the class has no method `reset`."""
    factory = load(target)
    if isinstance(factory, type) and not callable(getattr(factory, "reset", None)):
        raise ConfigError(
            given=f"the environment {target.name} has no method reset",
            allowed="a class of TRL's environment_factory: reset(**row), tools as public methods, and get_reward()",
            fix="Leave trl: out for a class with the method step.",
        )
    return type(target.name.rpartition(".")[2], (FromTRL,), {"factory": staticmethod(factory)})


class FromTRL:
    """An environment of TRL with our interface."""

    factory: Callable[..., Any]

    def __init__(self, **settings: Any) -> None:
        self._own = self.factory(**settings)

    def tools(self) -> list[Callable[..., Any]]:
        """Return the public methods. They are looked up on the class, so that no property is computed."""
        methods = inspect.getmembers(type(self._own), inspect.isfunction)
        names = [name for name, _ in methods if not name.startswith("_") and name not in _NOT_TOOLS]
        return [getattr(self._own, name) for name in names]

    async def reset(self, row: Mapping[str, Any], prompt: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return the prompt with the text from `reset` appended to the last message."""
        said = self._own.reset(**{**row, "prompt": [dict(message) for message in prompt]})
        said = await said if inspect.isawaitable(said) else said
        if said is None:
            return None
        if not isinstance(said, str):
            raise TypeError(f"reset returned {type(said).__name__}, but only text can be appended to a prompt")
        return {"prompt": [*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + said}]}

    async def reward(self) -> float | None:
        if not hasattr(self._own, "get_reward"):
            return None
        given = self._own.get_reward()
        return await given if inspect.isawaitable(given) else given
