"""The rows of each step: a pure function of the seed and the step, so that a resumed run reads the same rows."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Strata:
    """The stratum of each row. Each step then holds every stratum in its overall share, as far as whole rows allow."""

    of_rows: Tensor
    """Number of the stratum of each row, counted from 0, `[rows]`."""

    @staticmethod
    def by(labels: Iterable[Hashable]) -> Strata:
        """The strata for a label of each row.

        >>> Strata.by(["Yes", "No", "Yes"]).of_rows
        tensor([0, 1, 0])
        """
        numbers: dict[Hashable, int] = {}
        return Strata(torch.tensor([numbers.setdefault(label, len(numbers)) for label in labels]))


def rows_for_step(seed: int, step: int, per_step: int, size: int, strata: Strata | None = None) -> list[int]:
    """The rows of step 1, 2, …: `per_step` rows at a time from shuffled epochs, one epoch after the other.

    Each epoch has every row exactly once. If `per_step` does not divide `size`, a step may end one epoch and begin the
    next; it may then hold a row twice.

    >>> sorted(rows_for_step(0, 1, 2, 4) + rows_for_step(0, 2, 2, 4))
    [0, 1, 2, 3]
    """
    if step < 1 or per_step < 1 or size < 1:
        raise ValueError(f"step {step}, per_step {per_step} and size {size} must all be at least 1")
    first = (step - 1) * per_step
    places = range(first, first + per_step)
    if strata is None:
        return [int(_epoch(seed, place // size, size)[place % size]) for place in places]
    return [int(_stratified_epoch(seed, place // size, strata)[place % size]) for place in places]


def rows_for_round(seed: int, step: int, number: int, size: int) -> list[int]:
    """All rows, in the order in which an additional sampling round (1, 2, …) of a step takes them.

    >>> sorted(rows_for_round(0, 1, 1, 4)), rows_for_round(0, 1, 1, 40) == rows_for_round(0, 1, 2, 40)
    ([0, 1, 2, 3], False)
    """
    generator = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 10_007 + number) % 2**63)
    return torch.randperm(size, generator=generator).tolist()


@functools.lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, size: int) -> Tensor:
    """A shuffled epoch; it takes 8 bytes for each row."""
    return torch.randperm(size, generator=_generator(seed, epoch))


@functools.lru_cache(maxsize=2)
def _stratified_epoch(seed: int, epoch: int, strata: Strata) -> Tensor:
    """A shuffled epoch with evenly spread strata: the n rows of a stratum are shuffled and placed at (k + u) / n of the
    epoch, k = 0 … n - 1, with one random u for the stratum.

    So any part of the epoch holds each stratum in its share, up to a row or two. The position of a stratum's only row
    is random.
    """
    generator = _generator(seed, epoch)
    shuffled = torch.randperm(len(strata.of_rows), generator=generator)
    kinds = strata.of_rows[shuffled]
    order = kinds.argsort(stable=True)  # rows of one stratum side by side, still shuffled
    counts = kinds.bincount()
    starts = counts.cumsum(0) - counts
    kinds = kinds[order]
    k = torch.arange(len(order)) - starts[kinds]
    u = torch.rand(len(counts), generator=generator, dtype=torch.float64)
    return shuffled[order][((k + u[kinds]) / counts[kinds]).argsort(stable=True)]


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
