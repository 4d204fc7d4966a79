"""The controller's memory of a row, a group and an engine."""

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
    """Who decodes it."""
    attempt: int = 0
    """How often it was given to an engine."""
    failures: int = 0
    """How often it was lost since its last token."""
    spans: list[list[int]] = field(default_factory=list)
    """Its tokens: [version, count] one after the other."""
    ended: bool = False

    @property
    def drawn(self) -> int:
        return sum(count for _, count in self.spans)

    @property
    def version(self) -> int:
        """The version of its last token."""
        return self.spans[-1][0] if self.spans else -1

    def draw(self, version: int, count: int) -> None:
        add_span(self.spans, version, count)
        self.failures = 0


@dataclass
class GroupState:
    """A group in flight: its rows are decoded, or its rewards computed."""

    rows: list[RowState]
    scorings: int = 0
    """How often its rewards were asked for."""
    moves: int = 0
    """How often one of its rows went away, or came back."""

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
    """An engine that is there, or is expected."""

    joined: bool = False
    version: int | None = None
    """The weights it decodes with."""
    loading: int | None = None
    """The weights it was told to load and has not yet."""
    falls_asleep: bool = False
    """It was told to sleep, and has not said that it does."""
    asleep: bool = False
    down: bool = False
    """It was ended, and is started anew later."""
    rows: set[Row] = field(default_factory=set)
    """What it has to decode."""
    progress: int = 0
    """Tokens drawn, rows answered, weights loaded and sleeps so far."""
    losses: int = 0
    """In a row, with no answer ended in between; of an engine that sleeps between steps: no sleep."""

    @property
    def rests(self) -> bool:
        """Whether it holds no memory of its device."""
        return self.asleep or self.down

    def ready(self, newest: int | None) -> bool:
        """Whether rows may be submitted to it."""
        return self.joined and self.loading is None and self.version is not None and self.version == newest
