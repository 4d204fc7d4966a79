"""Agreement among the ranks of a training job. In a job of one process every function returns its input.

The first rank leads. Only it reads data, samples, scores, measures and writes. It announces every operation that needs
the weights, and all ranks do it together. During an announced operation every rank has the same whole batch in main
memory, and computes its own part of the rows. So computations that couple rows (the mean of a batch, KTO's reference
point, whitening) see all rows on every rank, whatever the number of ranks. Only passes through the model are divided.

With tensor parallelism (`train.tensor`) neighbours share matrices and compute the same rows:

    ranks 0 1 2 3, groups of two           beside: 0 and 1, and 2 and 3, which have the same rows
                                           across: 0 and 2, and 1 and 3, which have different ones
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from posttrain.errors import PosttrainError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Company(Protocol):
    """A set of ranks that includes this one. All of them must make the same calls."""

    @property
    def rank(self) -> int:
        """The number of this process in the set."""
        ...

    @property
    def size(self) -> int: ...

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in the order of the ranks."""
        ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace these tensors, which are in main memory, by their sum over all ranks."""
        ...

    def from_first(self, value: T) -> T:
        """The value of the first rank in the set."""
        ...


class Ranks(Company, Protocol):
    """All ranks of a job; the first one leads."""

    def together(self, command: str, *args: Any) -> AbstractContextManager[bool]:
        """Announce `command` to the other ranks, and do the same inside the `with` block.

        The context gives whether it was announced. Inside another announced operation nothing is announced, because
        the other ranks reach the same place on their own.
        """
        ...

    def across(self, neighbours: int) -> Company:
        """The ranks at this rank's place in each group of `neighbours` ranks. All ranks must call it together."""
        ...

    def beside(self, neighbours: int) -> Company:
        """The group of `neighbours` ranks that includes this one. All ranks must call it together."""
        ...


@dataclass(frozen=True)
class OneRank:
    """A job of one process."""

    rank: int = 0
    size: int = 1

    def together(self, command: str, *args: Any) -> AbstractContextManager[bool]:
        return nullcontext(False)

    def gather(self, value: T) -> list[T]:
        return [value]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        return None

    def from_first(self, value: T) -> T:
        return value

    def across(self, neighbours: int) -> Company:
        return self

    def beside(self, neighbours: int) -> Company:
        return self


ONE = OneRank()


def on_all(ranks: Ranks, compute: Callable[[], T]) -> T:
    """The result of `compute` on this rank. If it raises a PosttrainError or OSError on some rank, all ranks raise the
    first such error."""
    found, error = None, None
    try:
        found = compute()
    except (PosttrainError, OSError) as raised:
        error = raised
    for one in ranks.gather(error):
        if one is not None:
            raise one
    return found  # type: ignore[return-value]


def deal(costs: Sequence[int], size: int) -> list[list[int]]:
    """Assign parts to `size` ranks: the longest first, each to the rank with the least to do.

    The largest sum is at most 4/3 of the best possible (Graham, 1969). The result depends only on the arguments, so all
    ranks find the same one. The parts of each rank are in ascending order.

    >>> deal([5, 3, 4, 2], size=2)
    [[0, 3], [1, 2]]
    """
    dealt: list[list[int]] = [[] for _ in range(size)]
    done = [0] * size
    for part in sorted(range(len(costs)), key=lambda part: (-costs[part], part)):
        rank = min(range(size), key=done.__getitem__)
        dealt[rank].append(part)
        done[rank] += costs[part]
    return [sorted(parts) for parts in dealt]
