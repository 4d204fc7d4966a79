"""The parts that all trajectories of a run share, whatever produces their turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from posttrain.episodes.calls import CallFormat
from posttrain.episodes.turns import Conductor, Turns

if TYPE_CHECKING:
    from posttrain.episodes.bridge import Bridge
    from posttrain.episodes.sessions import Sessions


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a trajectory."""

    max_turns: int
    """Maximum number of turns of the policy."""
    max_length: int | None = None
    """Maximum tokens after the prompt, sampled and given; None: the context window."""
    attempts: int = 3
    """Maximum number of attempts at a trajectory whose environment fails."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The environment or the tools, the bridge that turns their messages into ids, and the limits of trajectories."""

    bridge: Bridge
    sessions: Sessions
    limits: Limits
    calls: CallFormat | None = None
    """The format of tool calls; None without tools."""
    context_length: int | None = None
    """Maximum tokens in the context of the sampler or engine; None: no limit."""

    @property
    def has_environment(self) -> bool:
        """Whether there is an environment or an agent, and not only stateless tools."""
        return self.sessions.setup.environment is not None or self.sessions.setup.agent is not None

    def turns(self, conductor: Conductor) -> Turns:
        """Return the rules of these trajectories; `conductor` does what they ask for."""
        return Turns(self, conductor)
