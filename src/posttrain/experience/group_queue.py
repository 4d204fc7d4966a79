"""Experience waits here between sampling and training; what has become too old is dropped and counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from posttrain.errors import GuardStop


class Versioned(Protocol):
    @property
    def version(self) -> int:
        """The policy version that sampled the item; of several, the oldest."""
        ...


Item = TypeVar("Item", bound=Versioned)


class ExperienceQueue(Generic[Item]):
    """First in, first out; gives out items that are at most `max_staleness` policy versions old.

    `max_staleness` 0 is synchronous training: only what the present policy sampled is trained on. What happens depends
    on versions and on the order of the calls alone, never on the clock.

    `on_drop(item, staleness)` is told of every item that was dropped; `dropped` counts them.
    """

    def __init__(
        self,
        max_staleness: int,
        *,
        capacity: int | None = None,
        on_drop: Callable[[Item, int], None] | None = None,
    ) -> None:
        """`capacity` bounds how far sampling may run ahead; the default holds one item per admitted version."""
        self.max_staleness = max_staleness
        self.capacity = max_staleness + 1 if capacity is None else capacity
        if max_staleness < 0 or self.capacity < 1:
            raise ValueError(f"a queue needs max_staleness >= 0 and capacity >= 1, got {max_staleness} and {capacity}")
        self.on_drop = on_drop
        self.dropped = 0
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return len(self) >= self.capacity

    def put(self, item: Item) -> None:
        """Append an item. Raises OverflowError when the queue is full: ask `full` before sampling."""
        if self.full:
            raise OverflowError(f"the experience queue holds its {self.capacity} items already; take one first")
        self._items.append(item)

    def take(self, current_version: int) -> Item | None:
        """The oldest item that may still be trained on, None when there is none; older ones on the way are dropped."""
        while self._items:
            item = self._items.popleft()
            staleness = current_version - item.version
            if staleness < 0:
                raise ValueError(
                    f"an item of policy version {item.version} cannot exist yet at version {current_version}"
                )
            if staleness <= self.max_staleness:
                return item
            self.dropped += 1
            if self.on_drop is not None:
                self.on_drop(item, staleness)
        return None

    def take_or_produce(self, current_version: int, produce: Callable[[], Item]) -> Item:
        """`take`, and when nothing is left, `produce` an item and take that one.

        Raises GuardStop when the new item is too old as well: then every later one would be, without end.
        """
        item = self.take(current_version)
        if item is not None:
            return item
        self.put(produce())
        item = self.take(current_version)
        if item is None:
            raise GuardStop(
                given=f"new experience is more than {self.max_staleness} versions older than policy {current_version}",
                allowed=f"experience sampled by version {current_version - self.max_staleness} or later",
                fix="Publish the trained weights to the sampler before it samples again.",
            )
        return item
