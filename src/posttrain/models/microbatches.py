"""Which rows go through the model together: a token budget, no divisibility rule.

What is counted are the tokens that are computed: padding costs nothing, since the forward pass is packed, and what rows
have in common at their beginning (packing.py) counts once per micro-batch.
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
"""Pairs of tokens, one attending to the other, that cost about as much as all else that is done with one token: six
times the width of the hidden state, here of one around 700. Micro-batches are balanced by it, nothing more."""


def plan_microbatches(
    tokens: Sequence[int], tokens_per_microbatch: int, *, work: Sequence[float] | None = None
) -> list[list[int]]:
    """Numbers of the rows of each micro-batch: at most `tokens_per_microbatch` tokens, as few and as equal as possible.

    `tokens` are those of each row. What is made equal is `work`, by default the tokens. A row longer than the budget
    goes alone. Every row appears exactly once; rows stand in ascending order, micro-batches in that of their first row.
    The plan is a function of the arguments alone; how rows are split never changes a gradient (RULE 7).

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
    """Numbers of the units of each micro-batch. A unit is rows that a loss compares; `needed` are tokens of each row.

    Units with rows of one family go together where the budget allows it; where it does not, each part of them computes
    the prefix again. Otherwise as `plan_microbatches`.

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
    """Units that share prefixes, and what it costs to compute them."""

    units: list[int]
    tokens: int
    work: float


def _parts(
    units: Mapping[int, Sequence[int]], families: Sequence[Family], needed: Sequence[int], budget: int
) -> list[_Part]:
    """All of these units, which have families in common, as one part; more parts where they are too many."""
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
    """Units that are connected by families, and the families that connect them."""
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
    """First-fit decreasing: at most 11/9 of the smallest possible number of micro-batches, plus one."""
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
    """Each row to the one of `number` micro-batches that has least to do and room for it, longest first; None when
    none has room."""
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
    """`microbatches` as `forward` computes them: one whose model cannot share prefixes says so by `shares_prefixes`.

    Over several ranks each gets those of its own rows, and all get equally many: where there are fewer, micro-batches
    that train nothing fill up, with no row number. All ranks have to split the same batch at the same time.
    """

    forward: object
    tokens_per_microbatch: int
    ranks: Company = ONE
    """Those with other rows."""

    def __call__(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        """Row numbers and rows of each micro-batch."""
        share, most = bool(getattr(self.forward, "shares_prefixes", True)), self.tokens_per_microbatch
        if self.ranks.size == 1:
            return microbatches(batch, most, share=share)
        mine = rows_by_rank(batch, self.ranks.size, share=share)[self.ranks.rank]
        parts = microbatches(batch.rows(mine), most, share=share) if mine else iter(())
        found = [([mine[row] for row in rows], micro) for rows, micro in parts]
        missing = max(self.ranks.gather(len(found))) - len(found)
        return iter(found + [([], filler(batch))] * missing)


def filler(batch: Batch) -> Batch:
    """Of the batch's kind, and nothing in it is trained."""
    one = batch.rows(batch.units[0])
    return replace(one, completion_mask_BT=torch.zeros_like(one.completion_mask_BT))


def rows_by_rank(batch: Batch, size: int, *, share: bool = True) -> list[list[int]]:
    """Numbers of the rows that each of `size` ranks computes: the tokens that go through the model are made equal.

    Units stay together. So do rows that begin alike, as their beginning is computed once, unless one rank would then
    have a tenth more to do than they have on average. Rows that train nothing are nobody's.
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
    """Row numbers and rows, grouped so that no part computes more tokens than the budget.

    Rows that train nothing are left out. Rows that belong together (`Batch.units`) go together; a unit that is longer
    than the budget goes alone. With `share`, rows that begin alike go together where the budget allows it: then their
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
    """How many tokens of each row go through the model, and which rows share some of them. A row whose context begins
    anew is several sequences, and shares none."""
    if tokens.starts_BT is not None:
        needed_B = needed_in_parts(tokens, mask_BT)
        return needed_B.tolist(), alone(needed_B)
    needed_B = needed_tokens(mask_BT)
    return needed_B.tolist(), find_families(tokens.input_ids_BT, needed_B) if share else alone(needed_B)
