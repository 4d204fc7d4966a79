"""The interface to an environment of verifiers, for all versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

KEY = "POSTTRAIN_API_KEY"
"""The variable from which verifiers reads the endpoint's key. Its ending keeps verifiers from passing it to tools."""


class Worth(NamedTuple):
    """The reward and metrics of an episode."""

    reward: float
    metrics: Mapping[str, float]


class Played(Protocol):
    """An environment that runs its episodes itself."""

    def rows(self) -> Iterable[dict[str, Any]]:
        """Return its tasks as rows of data, in its own order; `prompt` is the policy's prompt."""
        ...

    def prepare(self) -> None:
        """Prepare once, before the first episode. ConfigError if the settings are incomplete."""
        ...

    async def play(self, row: Mapping[str, Any], url: str) -> Worth:
        """Run one episode with the policy at the endpoint `url`. Raises the error if the episode fails."""
        ...
