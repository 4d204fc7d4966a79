"""The requests to an environment of verifiers, of any version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

KEY = "POSTTRAIN_API_KEY"
"""The variable from which verifiers reads the key of the endpoint; one with this ending is not handed to its tools."""


class Worth(NamedTuple):
    """What an environment made of an episode."""

    reward: float
    metrics: Mapping[str, float]


class Played(Protocol):
    """An environment that plays its episodes itself."""

    def rows(self) -> Iterable[dict[str, Any]]:
        """Its tasks as rows of data, in its own order; `prompt` is what the policy is asked."""
        ...

    def prepare(self) -> None:
        """Once, before the first episode. ConfigError where the settings leave something open."""
        ...

    async def play(self, row: Mapping[str, Any], url: str) -> Worth:
        """One episode, with the policy at the endpoint. Raises what went wrong in it."""
        ...
