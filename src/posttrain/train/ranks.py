"""What the ranks of a training job agree on: denominators, metrics, decisions. One process is the identity.

Whatever all ranks must see alike goes through here: the denominators of a step, whether a step is taken at all, how
many micro-batches it has, and every "try, else another way". A rank that decided alone would leave the others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

from posttrain.types import Batch, Metrics, Totals, count_totals

T = TypeVar("T")


class Ranks(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def totals(self, batch: Batch) -> Totals:
        """The denominators of the step, of which `batch` is this rank's part."""
        ...

    def all_agree(self, fine: bool) -> bool:
        """Is it fine on every rank?"""
        ...

    def even(self, micros: Sequence[Batch]) -> Sequence[Batch]:
        """As many micro-batches on every rank: where there are fewer, rows that train nothing fill up."""
        ...

    def merge(self, metrics: Metrics) -> Metrics:
        """The metrics of all ranks as one."""
        ...


@dataclass(frozen=True)
class OneRank:
    """A job of one process."""

    rank: int = 0
    size: int = 1

    def totals(self, batch: Batch) -> Totals:
        return count_totals(batch)

    def all_agree(self, fine: bool) -> bool:
        return fine

    def even(self, micros: Sequence[Batch]) -> Sequence[Batch]:
        return micros

    def merge(self, metrics: Metrics) -> Metrics:
        return metrics


def sum_totals(parts: Sequence[Totals]) -> Totals:
    """The denominators of a step whose rows lie on several ranks.

    >>> sum_totals([Totals(tokens=3, sequences=1, rows=1), Totals(tokens=5, sequences=2, rows=2)]).tokens
    8
    """
    return Totals(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(Totals)})
