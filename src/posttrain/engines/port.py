"""The protocol of an engine outside the trainer's process, the same for processes and servers.

Messages hold numbers and text, never tensors. Weights go through memory that both sides see (published.py), or in the
way that a server requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from posttrain.engines.sampler import Digest
from posttrain.types import FinishReason

RowName = tuple[int, int]
"""(number of the group, index in the group)."""
Token = tuple[tuple[int, ...], int]
"""(all ids before it, the token)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Asks to decode one row from its present state until it ends."""

    row: RowName
    attempt: int
    prompt_ids: tuple[int, ...]
    drawn_ids: tuple[int, ...] = ()
    """Tokens that earlier attempts have delivered. They are kept, and the random stream continues after them."""
    seed: int
    stream: tuple[int, int]
    """`(prompt index, g)`: selects the row's random numbers, together with `seed`."""
    used: int = 0
    """Random numbers that the row has used before the first of its `drawn_ids`, in its earlier turns."""
    max_new_tokens: int
    """The limit of the whole completion, including the tokens sampled so far."""
    temperature: float | None = None
    """Replaces the run's temperature, if given; 0: greedy."""
    top_p: float | None = None
    """Replaces all of the run's truncation, if given."""
    stops: bool = True
    """Whether the run's stop strings end the row."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The next tokens of a row, all sampled with the same weights, and perhaps its end. Without tokens and end, it says
    that the row goes on, and its tokens come later."""

    row: RowName
    attempt: int
    version: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason | None = None
    """Why the row ends with these tokens; None if it goes on."""
    text: str | None = None
    """The text of the whole completion, if it ends."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Piece:
        return Piece(**{**saved, **{name: tuple(saved[name]) for name in ("row", "ids", "logprobs")}})


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An engine has loaded the model. Its weights are not yet the run's weights."""

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """The tensors that it decodes with: dtype and shape by name."""
    merged: bool
    """Whether adapters are merged into these tensors; if not, the engine has adapters of its own."""
    note: str = ""
    """Why it decodes slower than it could; empty if it does not."""


@dataclass(frozen=True, kw_only=True)
class WeightsLoaded:
    """The engine decodes with these weights. Its report is checked before it is asked anything else."""

    version: int
    digests: Mapping[str, Digest]
    """Digests of the tensors that it decodes with now."""
    probe: Sequence[Sequence[float]]
    """Its log-probabilities of the tokens of the delivery proof."""
    seconds: float
    """Seconds for which loading interrupted decoding."""


@dataclass(frozen=True, kw_only=True)
class Asleep:
    """The engine sleeps, and its memory on the trainer's device is measured to be free."""

    gave: int
    """Bytes that it gave back."""


@dataclass(frozen=True, kw_only=True)
class GivenBack:
    """The engine gave back an unfinished row."""

    row: RowName
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Examined:
    """An engine's report about itself and about tokens that it was asked about in addition to its rows."""

    number: int
    """The number of the examination, because an answer may arrive after the next one has begun."""
    version: int
    """The version that it decodes with."""
    digests: Mapping[str, Digest]
    """Digests of the tensors that it decodes with now."""
    fresh: tuple[float, ...]
    """The log-probability of each token, with an empty cache."""
    cached: tuple[float, ...]
    """The log-probability of each token, with the cache that its rows have left."""


class EngineGone(Exception):
    """The engine has ended, or sends what cannot be understood; the text says how."""


Answer = Ready | Piece | WeightsLoaded | Asleep | GivenBack | Examined


class EnginePort(Protocol):
    """One engine, as its driver sees it. No call blocks."""

    name: str

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when there is an answer."""
        ...

    def submit(self, tasks: Sequence[Task]) -> None:
        """Decode these rows in this order, in addition to the engine's other rows."""
        ...

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        """Give these rows back unfinished, each if it is still at that attempt."""
        ...

    def load(self, version: int) -> None:
        """Load the weights that are published as `version`; rows in flight continue with them."""
        ...

    def answers(self) -> list[Answer]:
        """Return the messages since the last call. Raises EngineGone if no more can come."""
        ...

    def push(self) -> bool:
        """Send more of the data that the engine has not read yet; return whether some is left."""
        ...

    def work(self) -> float:
        """Return the processor seconds that it has used so far; if nobody can tell, an ever larger number."""
        ...

    def kill(self) -> None:
        """End it immediately, with everything that it has started."""
        ...


@runtime_checkable
class SleepingPort(EnginePort, Protocol):
    """An engine that can share the trainer's device."""

    def sleep(self) -> None:
        """Give back its memory on the device until the next `load`. It must have no rows."""
        ...


@runtime_checkable
class Examinable(Protocol):
    """An engine that can answer questions about tokens in addition to its rows."""

    def examine(self, number: int, tokens: Sequence[Token]) -> None:
        """Report the engine's tensors and the log-probabilities of these tokens, in one `Examined` with this number. An
        engine that is busy, or cannot answer, sends nothing."""
        ...
