"""The split of rows into micro-batches: by a token budget, without a divisibility rule.

The budget counts computed tokens. Padding costs nothing, because the forward pass is packed, and a common beginning of
rows (packing.py) counts once per micro-batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.heartbeat import beat
from posttrain.models.packing import Family, alone, find_families, needed_tokens
from posttrain.models.restarts import needed_in_parts
from posttrain.ranks.agreement import ONE, Company, deal
from posttrain.types import Batch, Tokens

PAIRS_PER_TOKEN = 4096
"""Number of attending token pairs that cost about as much as everything else for one token: six times the width of the
hidden state, here about 700. It is only used to balance micro-batches."""


def plan_microbatches(
    tokens: Sequence[int], tokens_per_microbatch: int, *, work: Sequence[float] | None = None
) -> list[list[int]]:
    """Return the row numbers of each micro-batch: within `tokens_per_microbatch`, as few and as equal as possible.

    `tokens` are the tokens of each row. `work`, by default the tokens, is what is made equal. A row longer than the
    budget goes alone. Every row appears exactly once; rows are in ascending order, micro-batches in the order of their
    first rows. The plan depends on the arguments alone; the split of rows never changes a gradient (RULE 7).

    >>> plan_microbatches([5, 3, 4, 2, 9], tokens_per_microbatch=8)
    [[0, 3], [1, 2], [4]]
    """
    if tokens_per_microbatch < 1:
        raise ValueError(f"tokens_per_microbatch = {tokens_per_microbatch}, but a micro-batch has at least one token")
    longest_first = sorted(range(len(tokens)), key=lambda row: (-tokens[row], row))
    alone = [[row] for row in longest_first if tokens[row] > tokens_per_microbatch]
    rows = longest_first[len(alone) :]
    fewest = _first_fit(rows, tokens, tokens_per_microbatch)
    planned = _spread(rows, tokens, work or tokens, tokens_per_microbatch, len(fewest)) or fewest
    return sorted(sorted(rows) for rows in alone + planned)


def plan_units(
    units: Sequence[Sequence[int]], families: Sequence[Family], needed: Sequence[int], tokens_per_microbatch: int
) -> list[list[int]]:
    """Return the unit numbers of each micro-batch. A unit is the rows that a loss compares; `needed` counts tokens.

    Units with rows of one family go together if the budget allows it. If not, each part of the family computes the
    prefix again. Otherwise it works like `plan_microbatches`.

    >>> family = Family((0, 1, 2), prefix=10)
    >>> plan_units([[0], [1], [2], [3]], [family, Family((3,), 0)], [16, 14, 12, 9], tokens_per_microbatch=30)
    [[0, 1, 2], [3]]
    """
    parts = [
        part
        for kin, kin_families in _kindred(units, families)
        for part in _parts({unit: units[unit] for unit in kin}, kin_families, needed, tokens_per_microbatch)
    ]
    planned = plan_microbatches(
        [part.tokens for part in parts], tokens_per_microbatch, work=[part.work for part in parts]
    )
    return sorted(sorted(unit for place in together for unit in parts[place].units) for together in planned)


class _Part(NamedTuple):
    """Units that share prefixes, and the cost of computing them."""

    units: list[int]
    tokens: int
    work: float


def _parts(
    units: Mapping[int, Sequence[int]], families: Sequence[Family], needed: Sequence[int], budget: int
) -> list[_Part]:
    """Return one part with all of these units, which share families; several parts if they exceed the budget."""
    shared = [family.prefix for family in families]
    prefix_of = {row: family.prefix for family in families for row in family.rows}
    own = {
        unit: [(prefix_of[row], needed[row] - prefix_of[row]) for row in units[unit] if row in prefix_of]
        for unit in units
    }
    names, tokens = list(units), [sum(length for _, length in own[unit]) for unit in units]
    parts = []
    for places in plan_microbatches(tokens, max(1, budget - sum(shared))):
        part_tokens = sum(shared) + sum(tokens[place] for place in places)
        pairs = sum(length * (prefix + length / 2) for place in places for prefix, length in own[names[place]])
        pairs += sum(prefix**2 / 2 for prefix in shared)
        parts.append(_Part([names[place] for place in places], part_tokens, part_tokens + pairs / PAIRS_PER_TOKEN))
    return parts


def _kindred(units: Sequence[Sequence[int]], families: Sequence[Family]) -> Iterator[tuple[list[int], list[Family]]]:
    """Yield groups of units that families connect, with these families."""
    family_of = {row: number for number, family in enumerate(families) for row in family.rows}
    units_of: dict[int, list[int]] = defaultdict(list)
    for unit, rows in enumerate(units):
        for number in {family_of[row] for row in rows if row in family_of}:
            units_of[number].append(unit)
    seen: set[int] = set()
    for first, rows in enumerate(units):
        if first in seen:
            continue
        seen.add(first)
        kin, found = [first], {family_of[row] for row in rows if row in family_of}
        waiting = list(found)
        while waiting:
            for unit in units_of[waiting.pop()]:
                if unit not in seen:
                    seen.add(unit)
                    kin.append(unit)
                    new = {family_of[row] for row in units[unit] if row in family_of} - found
                    found |= new
                    waiting += new
        yield sorted(kin), [families[number] for number in sorted(found)]


def _first_fit(rows: list[int], tokens: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: uses at most 11/9 of the smallest possible number of micro-batches, plus one."""
    planned: list[list[int]] = []
    room: list[int] = []
    for row in rows:
        place = next((i for i, free in enumerate(room) if tokens[row] <= free), None)
        if place is None:
            planned.append([])
            room.append(budget)
            place = -1
        planned[place].append(row)
        room[place] -= tokens[row]
    return planned


def _spread(
    rows: list[int], tokens: Sequence[int], work: Sequence[float], budget: int, number: int
) -> list[list[int]] | None:
    """Give each row to the micro-batch of `number` with the least work and enough room, longest first; None if some row
    finds no room."""
    planned: list[list[int]] = [[] for _ in range(number)]
    used, done = [0] * number, [0.0] * number
    for row in rows:
        fitting = [place for place in range(number) if used[place] + tokens[row] <= budget]
        if not fitting:
            return None
        place = min(fitting, key=done.__getitem__)
        planned[place].append(row)
        used[place] += tokens[row]
        done[place] += work[row]
    return planned


@dataclass(frozen=True)
class Split:
    """Splits a batch into `microbatches` for `forward`, whose `shares_prefixes` says whether its model can share them.

    Each rank of several gets the micro-batches of its own rows, and all get equally many: fillers that train nothing
    and have no row numbers make up the difference. All ranks have to split the same batch at the same time.
    """

    forward: object
    tokens_per_microbatch: int
    ranks: Company = ONE
    """The ranks with other rows."""

    def __call__(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        """Yield row numbers and rows of each micro-batch."""
        share, most = bool(getattr(self.forward, "shares_prefixes", True)), self.tokens_per_microbatch
        if self.ranks.size == 1:
            return microbatches(batch, most, share=share)
        mine = rows_by_rank(batch, self.ranks.size, share=share)[self.ranks.rank]
        parts = microbatches(batch.rows(mine), most, share=share) if mine else iter(())
        found = [([mine[row] for row in rows], micro) for rows, micro in parts]
        missing = max(self.ranks.gather(len(found))) - len(found)
        return iter(found + [([], filler(batch))] * missing)


def filler(batch: Batch) -> Batch:
    """Return a micro-batch of the batch's kind that trains nothing."""
    one = batch.rows(batch.units[0])
    return replace(one, completion_mask_BT=torch.zeros_like(one.completion_mask_BT))


def rows_by_rank(batch: Batch, size: int, *, share: bool = True) -> list[list[int]]:
    """Return the row numbers that each of `size` ranks computes, so that all compute equally many tokens.

    Units stay together. So do rows with a common beginning, because it is computed once, unless one rank would then
    have over a tenth more to do than the average. Rows that train nothing go to no rank.
    """
    assert batch.tokens is not None, "a batch without token ids cannot go through the model"
    needed, families = _needed(batch.tokens, batch.completion_mask_BT, share=share)
    trains = batch.completion_mask_BT.any(dim=-1).tolist()
    units = [unit for unit in batch.units if any(trains[row] for row in unit)]
    prefix_of = {row: family.prefix for family in families for row in family.rows}
    kindred = [
        ([row for unit in kin for row in units[unit]], sum(family.prefix for family in kin_families))
        for kin, kin_families in _kindred(units, families)
    ]
    costs = [shared + sum(needed[row] - prefix_of.get(row, 0) for row in rows) for rows, shared in kindred]
    dealt = deal(costs, size)
    if max(sum(costs[part] for part in parts) for parts in dealt) <= 1.1 * sum(costs) / size:
        return [sorted(row for part in parts for row in kindred[part][0]) for parts in dealt]
    apart = deal([sum(needed[row] for row in unit) for unit in units], size)
    return [sorted(row for unit in parts for row in units[unit]) for parts in apart]


def microbatches(batch: Batch, tokens_per_microbatch: int, *, share: bool = True) -> Iterator[tuple[list[int], Batch]]:
    """Yield row numbers and rows, grouped so that no part computes more tokens than the budget.

    Rows that train nothing are left out. Rows that belong together (`Batch.units`) go together; a unit longer than the
    budget goes alone. With `share`, rows with a common beginning go together if the budget allows it: then that
    beginning is computed, and counted, once.
    """
    assert batch.tokens is not None, "a batch without token ids cannot go through the model"
    needed, families = _needed(batch.tokens, batch.completion_mask_BT, share=share)
    trains = batch.completion_mask_BT.any(dim=-1).tolist()
    units = [unit for unit in batch.units if any(trains[row] for row in unit)]
    for part in plan_units(units, families, needed, tokens_per_microbatch):
        beat("a micro-batch began")
        rows = [row for place in part for row in units[place]]
        yield rows, batch.rows(rows)


def _needed(tokens: Tokens, mask_BT: Tensor, *, share: bool) -> tuple[list[int], list[Family]]:
    """Return how many tokens of each row go through the model, and the families that share some. A row with several
    contexts is several sequences, and shares none."""
    if tokens.starts_BT is not None:
        needed_B = needed_in_parts(tokens, mask_BT)
        return needed_B.tolist(), alone(needed_B)
    needed_B = needed_tokens(mask_BT)
    return needed_B.tolist(), find_families(tokens.input_ids_BT, needed_B) if share else alone(needed_B)
