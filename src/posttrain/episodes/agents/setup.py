"""The facts about its agent that a trajectory's process is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.rewards.load import Target


@dataclass(frozen=True, kw_only=True)
class AgentSetup:
    """A function or a command, and what its requests may ask for. Plain JSON, but for `function`."""

    function: Target | None = None
    command: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""
    host: str = "127.0.0.1"
    """The address that the server listens on."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of OpenAI's requests that say how tokens are drawn, with the values of the run."""
    ignores: bool = False
    """Parameters of that kind with other values are ignored; else such requests are refused."""
