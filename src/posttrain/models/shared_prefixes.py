"""Rows that begin alike: completions of one prompt, the two answers of a pair, rows of data with one question.

What a causal model makes of a token depends on the tokens before it alone, so a beginning that several rows have in
common needs to be computed once. It is found by looking at the ids: who made the rows, and in which order they stand,
does not matter.

Dropout of adapters is drawn once for a shared beginning. What each row sees is distributed as it would be alone, so the
mean gradient of a loss that is a sum over rows stays; rows that a loss compares see the same draw of their prompt.

B rows, T tokens of a padded row, R rows in alphabetical order of their ids.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

LEAST_SAVING = 16
"""Tokens that a family has to save: each one costs calls of attention in every layer, which are not worth fewer."""


class Family(NamedTuple):
    """Rows that begin with the same `prefix` tokens, longest first; a row alone has a prefix of 0."""

    rows: tuple[int, ...]
    prefix: int


def find_families(ids_BT: Tensor, needed_B: Tensor) -> list[Family]:
    """Every row of which `needed_B` tokens are needed, more than none, in one family; together they save the most.

    A family of k rows with a prefix of p tokens saves (k - 1) p - LEAST_SAVING. Rows that begin alike are neighbours in
    alphabetical order, so families are cut from that order, and the best cut is found from left to right: exactly, in
    R^2 additions.

    >>> import torch
    >>> ids_BT = torch.tensor([[*range(20), 7, 7], [5] * 22, [*range(20), 8, 0]])
    >>> find_families(ids_BT, torch.tensor([22, 9, 21]))
    [Family(rows=(0, 2), prefix=20), Family(rows=(1,), prefix=0)]
    """
    needed = needed_B.numpy()
    big_endian = ids_BT.cpu().numpy().astype(">i8")  # so that the order of bytes is that of numbers
    rows = [row for row in range(len(needed)) if needed[row] > 0]
    rows.sort(key=lambda row: (big_endian[row, : needed[row]].tobytes(), row))
    if not rows:
        return []
    parts = _best_cut(_overlaps(big_endian, needed, rows))
    return [_family(rows[first:end], prefix, needed) for first, end, prefix in parts]


def alone(needed_B: Tensor) -> list[Family]:
    """The same rows, where nothing is shared."""
    return [Family((row,), 0) for row in needed_B.nonzero()[:, 0].tolist()]


def _family(rows: list[int], prefix: int, needed: np.ndarray) -> Family:
    return Family(tuple(sorted(rows, key=lambda row: (-needed[row], row))), prefix)


def _overlaps(ids: np.ndarray, needed: np.ndarray, rows: list[int]) -> list[int]:
    """How many tokens each row, from the second on, has in common with the one before it."""
    before, after = rows[:-1], rows[1:]
    limit = np.minimum(needed[before], needed[after])
    differs = (ids[before] != ids[after]) | (np.arange(ids.shape[1]) >= limit[:, None])
    return np.where(differs.any(axis=1), differs.argmax(axis=1), ids.shape[1]).tolist()


def _best_cut(overlaps: list[int]) -> list[tuple[int, int, int]]:
    """(first, end, prefix) of each part of R rows in order, so that the parts together save the most."""
    rows = len(overlaps) + 1
    saved, starts, prefixes = np.zeros(rows + 1, dtype=np.int64), [0] * (rows + 1), [0] * (rows + 1)
    common = np.zeros(rows, dtype=np.int64)  # of the rows from each first one on up to the present one
    for end in range(1, rows + 1):
        if end > 1:
            common[end - 2] = overlaps[end - 2]
            np.minimum(common[: end - 1], overlaps[end - 2], out=common[: end - 1])
        sizes = np.arange(end, 0, -1)
        gains = np.where(sizes > 1, (sizes - 1) * common[:end] - LEAST_SAVING, 0)
        starts[end] = end - 1 - int((saved[:end] + gains)[::-1].argmax())  # of equally good parts the smallest
        saved[end] = saved[starts[end]] + gains[starts[end]]
        prefixes[end] = int(common[starts[end]]) if end - starts[end] > 1 else 0
    parts, end = [], rows
    while end > 0:
        parts.append((starts[end], end, prefixes[end]))
        end = starts[end]
    return parts[::-1]
