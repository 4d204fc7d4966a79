"""The controller's records of rows, groups and engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.controller.messages import Row
from posttrain.controller.staleness import add_span


@dataclass
class RowState:
    """A row in flight."""

    engine: str | None = None
    """Name of the engine that decodes the row."""
    attempt: int = 0
    """How often the row was given to an engine."""
    failures: int = 0
    """How often the row was lost since its last token."""
    spans: list[list[int]] = field(default_factory=list)
    """The row's tokens as consecutive [version, count] pairs."""
    ended: bool = False

    @property
    def drawn(self) -> int:
        return sum(count for _, count in self.spans)

    @property
    def version(self) -> int:
        """The version that drew the row's last token; -1 without tokens."""
        return self.spans[-1][0] if self.spans else -1

    def draw(self, version: int, count: int) -> None:
        add_span(self.spans, version, count)
        self.failures = 0


@dataclass
class GroupState:
    """A group in flight: engines decode its rows, or its rewards are being computed."""

    rows: list[RowState]
    scorings: int = 0
    """How often the group's rewards were asked for."""
    moves: int = 0
    """How often one of the rows went to its environment or came back."""

    @property
    def ended(self) -> bool:
        return all(row.ended for row in self.rows)

    def saved(self, number: int) -> dict[str, Any]:
        rows = [{"spans": [list(span) for span in row.spans], "ended": row.ended} for row in self.rows]
        return {"group": number, "rows": rows}

    @classmethod
    def restored(cls, rows: Sequence[dict[str, Any]]) -> GroupState:
        return cls([RowState(spans=[list(span) for span in row["spans"]], ended=row["ended"]) for row in rows])


@dataclass
class EngineState:
    """An engine that has joined or is expected."""

    joined: bool = False
    version: int | None = None
    """The version that the engine decodes with."""
    loading: int | None = None
    """The version that the engine was told to load and has not loaded yet."""
    falls_asleep: bool = False
    """Whether the engine was told to sleep and has not confirmed it yet."""
    asleep: bool = False
    down: bool = False
    """Whether the engine was ended and will be restarted later."""
    rows: set[Row] = field(default_factory=set)
    """The rows that the engine has to decode."""
    progress: int = 0
    """Number of tokens drawn, rows answered, weights loaded and sleeps so far."""
    losses: int = 0
    """Consecutive losses without a finished answer in between; without a sleep, if it sleeps between steps."""

    @property
    def rests(self) -> bool:
        """Does the engine hold no memory of its device?"""
        return self.asleep or self.down

    def ready(self, newest: int | None) -> bool:
        """May rows be submitted to the engine?"""
        return self.joined and self.loading is None and self.version is not None and self.version == newest
