"""Which rows go through the model together: a token budget, no divisibility rule."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def plan_microbatches(lengths: Sequence[int], tokens_per_microbatch: int) -> list[list[int]]:
    """Row numbers of each micro-batch: at most `tokens_per_microbatch` tokens, as few and as equal as possible.

    `lengths` are the real tokens of each row (the forward pass is packed: padding costs nothing). A row longer than the
    budget goes alone. Every row appears exactly once; rows stand in ascending order, micro-batches in that of their
    first row. The plan is a function of the lengths alone; how rows are split never changes a gradient (RULE 7).

    >>> plan_microbatches([5, 3, 4, 2, 9], tokens_per_microbatch=8)
    [[0, 3], [1, 2], [4]]
    """
    if tokens_per_microbatch < 1:
        raise ValueError(f"tokens_per_microbatch = {tokens_per_microbatch}, but a micro-batch has at least one token")
    longest_first = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    alone = [[row] for row in longest_first if lengths[row] > tokens_per_microbatch]
    rows = longest_first[len(alone) :]
    fewest = _first_fit(rows, lengths, tokens_per_microbatch)
    planned = _spread(rows, lengths, tokens_per_microbatch, len(fewest)) or fewest
    return sorted(sorted(rows) for rows in alone + planned)


def _first_fit(rows: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: at most 11/9 of the smallest possible number of micro-batches, plus one."""
    planned: list[list[int]] = []
    room: list[int] = []
    for row in rows:
        place = next((i for i, free in enumerate(room) if lengths[row] <= free), None)
        if place is None:
            planned.append([])
            room.append(budget)
            place = -1
        planned[place].append(row)
        room[place] -= lengths[row]
    return planned


def _spread(rows: list[int], lengths: Sequence[int], budget: int, number: int) -> list[list[int]] | None:
    """Each row to the emptiest of `number` micro-batches, longest first; None when that breaks the budget."""
    planned: list[list[int]] = [[] for _ in range(number)]
    emptiest = [(0, i) for i in range(number)]
    for row in rows:
        used, place = emptiest[0]
        if used + lengths[row] > budget:
            return None
        planned[place].append(row)
        heapq.heapreplace(emptiest, (used + lengths[row], place))
    return planned
