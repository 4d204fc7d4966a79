"""How many tokens go through the model together, and in which grids attention sees them: rows of one length.

What models/microbatches.py and models/packing.py decide for real rows, in closed form: a family of rows has its common
beginning once, families go together while the budget lasts, and are spread evenly over as few parts as possible.

P tokens of the prompt, C of the completion. Of a row P + C - 1 tokens are needed: its last one predicts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from posttrain.lab.plan.records import Workload
from posttrain.models.packing import LEAST_SAVING


class Grid(NamedTuple):
    """Segments that attention sees as one right-padded grid: `rows` x `queries`, each after a shared prefix."""

    rows: int
    queries: int
    prefix: int = 0

    @property
    def keys(self) -> int:
        return self.prefix + self.queries


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One micro-batch."""

    rows: int
    row_tokens: int
    """Of the padded record of its rows."""
    tokens: int
    """That go through the model."""
    scored: int
    """Positions before scored tokens, which the head sees."""
    grids: tuple[Grid, ...]

    @property
    def scores(self) -> int:
        """Attention scores of one head, over all rows."""
        return sum(grid.rows * grid.queries * grid.keys for grid in self.grids)

    @property
    def longest_keys(self) -> int:
        return max((grid.keys for grid in self.grids), default=0)


class Microbatches(NamedTuple):
    """Those of one optimizer step: the largest, and how many there are."""

    largest: Layout
    number: int


def microbatches(workload: Workload) -> Microbatches:
    """Of the training passes of this workload."""
    shares = shares_prompts(workload)
    rows = ceil(workload.rows / workload.minibatches)
    alike = _rows_alike(workload) if shares else 1
    own, prefix = workload.row_tokens - 1, workload.prompt_tokens if shares else 0
    together, number = deal_out(rows, alike, own, prefix, workload.tokens_per_microbatch)
    return Microbatches(lay_out(workload.row_tokens, workload.completion_tokens, together, prefix), number)


def deal_out(rows: int, alike: int, own: int, prefix: int, budget: int) -> tuple[list[int], int]:
    """(rows of each family in the largest micro-batch, number of micro-batches) of rows that need `own` tokens each and
    begin in families of `alike` with the same `prefix`."""
    families = ceil(rows / alike)
    whole = prefix + alike * (own - prefix)
    if whole > budget:  # families are cut into parts
        parts = ceil(alike / max(1, (budget - prefix) // max(1, own - prefix)))
        return [ceil(alike / parts)], families * parts
    number = max(1, ceil(families / max(1, budget // max(1, whole))))
    return _families([alike] * families, rows, ceil(families / number)), number


def shares_prompts(workload: Workload) -> bool:
    """Do rows of a step begin alike, and does sharing the beginning pay?"""
    return _rows_alike(workload) > 1 and workload.prompt_tokens > LEAST_SAVING


def lay_out(row_tokens: int, scored: int, families: Sequence[int], prefix: int) -> Layout:
    """Of families with so many rows each: a trunk is a whole row, a branch what follows the prefix."""
    own = row_tokens - 1
    trunks, branches = [Grid(len(families), own)], [Grid(n - 1, own - prefix, prefix) for n in families if n > 1]
    grids = tuple(trunks + branches) if prefix else (Grid(sum(families), own),)
    rows = sum(families)
    return Layout(
        rows=rows,
        row_tokens=row_tokens,
        tokens=sum(grid.rows * grid.queries for grid in grids),
        scored=rows * scored,
        grids=grids,
    )


def _rows_alike(workload: Workload) -> int:
    """Rows of one optimizer step that have their prompt in common; minibatches deal the rows of a group out."""
    if workload.data_kind == "prompts":
        return max(1, round(workload.group_size / workload.minibatches))
    return 2 if workload.data_kind == "pairs" else 1


def _families(families: list[int], rows: int, number: int) -> list[int]:
    """Rows of the first `number` families; the last one of all may be incomplete."""
    return families[:number] if number < len(families) else [*families[:-1], rows - sum(families[:-1])]
