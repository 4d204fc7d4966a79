"""What the process of a trajectory needs to know about its agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.rewards.load import Target


@dataclass(frozen=True, kw_only=True)
class AgentSetup:
    """A function or a command, and what its requests may ask for. All fields but `function` are plain JSON."""

    function: Target | None = None
    command: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""
    host: str = "127.0.0.1"
    """The address that the server listens on."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters of OpenAI's requests, with the values of the run."""
    ignores: bool = False
    """Whether other values of these parameters are ignored; if not, such requests are refused."""
