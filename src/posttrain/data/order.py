"""Which rows a step gets: a pure function of the seed and the step, so that a resumed run reads on where it was."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def rows_for_step(seed: int, step: int, per_step: int, size: int) -> list[int]:
    """The rows of step 1, 2, …: `per_step` at a time from one shuffled epoch after the other.

    Each epoch has every row once, also where `per_step` does not divide `size`: a step then ends one epoch and begins
    the next, and may hold a row twice.

    >>> sorted(rows_for_step(0, 1, 2, 4) + rows_for_step(0, 2, 2, 4))
    [0, 1, 2, 3]
    """
    if step < 1 or per_step < 1 or size < 1:
        raise ValueError(f"step {step}, per_step {per_step} and size {size} must all be at least 1")
    first = (step - 1) * per_step
    return [int(_epoch(seed, place // size, size)[place % size]) for place in range(first, first + per_step)]


def rows_for_round(seed: int, step: int, number: int, size: int) -> list[int]:
    """All rows in the order in which a further round of sampling (1, 2, …) of a step may take them.

    >>> sorted(rows_for_round(0, 1, 1, 4)), rows_for_round(0, 1, 1, 40) == rows_for_round(0, 1, 2, 40)
    ([0, 1, 2, 3], False)
    """
    generator = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 10_007 + number) % 2**63)
    return torch.randperm(size, generator=generator).tolist()


@functools.lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, size: int) -> Tensor:
    """Eight bytes a row."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator)
