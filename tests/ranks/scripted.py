"""One rank of several, simulated in this process: the values of the others are computed or scripted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from posttrain.models.microbatches import microbatches, rows_by_rank
from posttrain.types import Batch


class Scripted:
    """Implements `Ranks`."""

    def __init__(self, rank: int, size: int, batch: Batch | None, errors: Sequence[Any] = ()) -> None:
        self.rank, self.size, self.batch, self.errors = rank, size, batch, errors

    def together(self, command: str, *args: Any) -> Any:
        return nullcontext()

    def gather(self, value: Any) -> list[Any]:
        """The numbers of micro-batches for a split, otherwise the scripted errors."""
        if self.batch is None:
            return list(self.errors)
        dealt = rows_by_rank(self.batch, self.size)
        return [len(list(microbatches(self.batch.rows(mine), 60))) if mine else 0 for mine in dealt]

    def add_up(self, tensors: Any) -> None:
        raise AssertionError("nothing is summed here")
