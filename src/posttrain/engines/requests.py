"""What is asked of an engine, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from posttrain.engines.sampling import UniformStream
from posttrain.types import FinishReason


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion of one prompt. Neighbours in a queue that have the same prompt share its way through the model."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """At least 1. The completion ends here at the latest."""
    stream: tuple[int, int] = (0, 0)
    """`(prompt index, g)`: which random numbers it draws with."""
    given_ids: tuple[int, ...] = ()
    """Tokens that are scored in place of drawn ones, `max_new_tokens` of them; empty where tokens are drawn."""


@dataclass(slots=True, eq=False)
class Row:
    """A request that is being decoded, or was: its tokens so far and, once it has ended, why."""

    number: int
    """Place of the request among those that the engine was given."""
    request: Request
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    uniforms: UniformStream | None = None
    """Where its random numbers come from, once one was drawn."""


@dataclass(frozen=True)
class Arrival:
    """`count` rows that begin with the same prompt. `more`: further rows of it will come right after these."""

    prompt_ids: Sequence[int]
    count: int
    more: bool
