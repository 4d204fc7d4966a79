"""The common parts of all trajectories of a run, for every source of their turns."""

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
    """How far a trajectory goes."""

    max_turns: int
    """Most turns of the policy."""
    max_length: int | None = None
    """Tokens behind the prompt, drawn and given; None: the context window."""
    attempts: int = 3
    """How often one is begun whose environment fails."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The environment or the tools, how their messages become ids, and how far trajectories go."""

    bridge: Bridge
    sessions: Sessions
    limits: Limits
    calls: CallFormat | None = None
    """None where there are no tools."""
    context_length: int | None = None
    """Most tokens that whoever draws the turns can see; None without a limit."""

    @property
    def has_environment(self) -> bool:
        """Is there more than tools, which remember nothing?"""
        return self.sessions.setup.environment is not None or self.sessions.setup.agent is not None

    def turns(self, conductor: Conductor) -> Turns:
        """The rules by which its trajectories go on; `conductor` does what follows from them."""
        return Turns(self, conductor)
