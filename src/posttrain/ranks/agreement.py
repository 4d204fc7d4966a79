"""Agreement among the ranks of a training job. In a job of one process every function returns its input.

The first rank leads. It alone reads data, samples, scores, measures and writes; whatever takes the weights of the model
it announces, and all ranks do it together. Inside of what was announced every rank has the same whole batch in main
memory, and computes its own part of the rows. So what couples rows (the mean of a batch, the point of KTO, a whitening)
sees all of them on every rank, whatever their number, and only passes through the model are divided.

With matrices divided among neighbours (`train.tensor`), neighbours compute the same rows:

    ranks 0 1 2 3, two neighbours each     beside: 0 and 1, and 2 and 3, which have the same rows
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
    """Some ranks of a job, this one among them. What they do together each of them has to call."""

    @property
    def rank(self) -> int:
        """The number of this process among them."""
        ...

    @property
    def size(self) -> int: ...

    def gather(self, value: T) -> list[T]:
        """The values that all ranks give, in the order of the ranks."""
        ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Write the sum over them into these tensors, which are in main memory."""
        ...

    def from_first(self, value: T) -> T:
        """What the first of them gives."""
        ...


class Ranks(Company, Protocol):
    """All ranks of a job; the first one leads."""

    def together(self, command: str, *args: Any) -> AbstractContextManager[bool]:
        """Let the others begin `command`, and do the same inside of the `with` block. Gives whether it was announced.

        Inside of another one nothing is announced: the others are on their way there by themselves.
        """
        ...

    def across(self, neighbours: int) -> Company:
        """One of each group of so many neighbours, at the same place in it as this one. Called by all at once."""
        ...

    def beside(self, neighbours: int) -> Company:
        """The neighbours of this one, so many with it. Called by all at once."""
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
    """What `compute` gives here. Where it raises on some rank, on purpose or because of a disk, all raise the first."""
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
    """Numbers of the parts that each of `size` ranks computes: longest first, each to the rank with least to do.

    At most 4/3 of the best possible largest sum (Graham, 1969). A function of the arguments alone, so that all ranks
    find the same one; parts stay in ascending order.

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
