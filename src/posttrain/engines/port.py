"""The protocol of an engine outside the trainer's process, the same for processes and servers.

Messages hold numbers and text, never tensors: weights go through memory that both sides see (published.py), or however
a server takes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from posttrain.engines.sampler import Digest
from posttrain.types import FinishReason

RowName = tuple[int, int]
"""(number of the group, number in the group)."""
Token = tuple[tuple[int, ...], int]
"""(all ids before it, the token)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Decode one row from where it stands, until it ends."""

    row: RowName
    attempt: int
    prompt_ids: tuple[int, ...]
    drawn_ids: tuple[int, ...] = ()
    """Tokens that earlier attempts have delivered. They are kept, and the random stream goes on behind them."""
    seed: int
    stream: tuple[int, int]
    """`(prompt index, g)`: with `seed`, which random numbers the row draws with."""
    used: int = 0
    """Random numbers that the row has used before the first of its `drawn_ids`: those of its earlier turns."""
    max_new_tokens: int
    """The limit of the whole completion, including the tokens drawn so far."""
    temperature: float | None = None
    """In place of the run's, where it is given; 0 takes the likeliest token."""
    top_p: float | None = None
    """In place of the run's truncation, whichever it is, where it is given."""
    stops: bool = True
    """The run's stop strings end the row."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The next tokens of a row, all drawn with the same weights; perhaps its end. Without tokens and without an end:
    the row goes on, and its tokens are told later."""

    row: RowName
    attempt: int
    version: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason | None = None
    """Why the row ends with these; None where it goes on."""
    text: str | None = None
    """The text of the whole completion, when it ends."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Piece:
        return Piece(**{**saved, **{name: tuple(saved[name]) for name in ("row", "ids", "logprobs")}})


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An engine has loaded the model. Its weights are not yet those of the run."""

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """The tensors that it decodes with, by name: precision and shape."""
    merged: bool
    """Adapters are merged into what it decodes with; else it has adapters of its own."""
    note: str = ""
    """Why it decodes slower than it could."""


@dataclass(frozen=True, kw_only=True)
class WeightsLoaded:
    """The engine decodes with these weights. What it says of them is looked at before anything else is asked of it."""

    version: int
    digests: Mapping[str, Digest]
    """The digests of the tensors that it decodes with now."""
    probe: Sequence[Sequence[float]]
    """Its answer about the tokens of the delivery proof."""
    seconds: float
    """From one token to the next, so long nothing was drawn."""


@dataclass(frozen=True, kw_only=True)
class Asleep:
    """The engine sleeps, and the memory that it held of the trainer's device is free: that was measured."""

    gave: int
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class GivenBack:
    """A row came back unfinished."""

    row: RowName
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Examined:
    """An engine's answer about itself and about tokens, when it is asked beside its requests."""

    number: int
    """The number of the examination: an answer may come after the next examination has begun."""
    version: int
    """That it decodes with."""
    digests: Mapping[str, Digest]
    """The digests of the tensors that it decodes with now."""
    fresh: tuple[float, ...]
    """The log-probability of each token, with nothing in the cache."""
    cached: tuple[float, ...]
    """The log-probability of each token, with the cache that its rows have left."""


class EngineGone(Exception):
    """The engine has ended, or says what nobody understands; the text says how."""


Answer = Ready | Piece | WeightsLoaded | Asleep | GivenBack | Examined


class EnginePort(Protocol):
    """One engine, as whoever drives it sees it. No call waits."""

    name: str

    def fileno(self) -> int:
        """The objects that become readable when there is an answer."""
        ...

    def submit(self, tasks: Sequence[Task]) -> None:
        """Decode these rows, beside those that it has, in this order."""
        ...

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        """Give these back as they are, each if it is still at that attempt."""
        ...

    def load(self, version: int) -> None:
        """Take the weights that are published as `version`; rows in flight go on with them."""
        ...

    def answers(self) -> list[Answer]:
        """The messages since the last call. Raises EngineGone if no more can come."""
        ...

    def push(self) -> bool:
        """Send more of what an engine that does not read has not taken yet; is there still something left?"""
        ...

    def work(self) -> float:
        """Processor seconds that it has taken so far; always more where nobody can say."""
        ...

    def kill(self) -> None:
        """End it at once, and whatever it has started."""
        ...


@runtime_checkable
class SleepingPort(EnginePort, Protocol):
    """An engine that can share the trainer's device."""

    def sleep(self) -> None:
        """Give back what it holds of the device, until the next `load`. It has no rows."""
        ...


@runtime_checkable
class Examinable(Protocol):
    """An engine that can be asked about tokens beside its requests."""

    def examine(self, number: int, tokens: Sequence[Token]) -> None:
        """Say what it decodes with and how likely these tokens are: one answer, `Examined`, with this number. An engine
        that has something better to do, or cannot answer, says nothing."""
        ...
