"""The queue gives out experience that is fresh enough, in order, and accounts for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from posttrain.engines import ExperienceQueue
from posttrain.errors import GuardStop


@dataclass(frozen=True)
class Item:
    name: str
    version: int


def test_with_staleness_0_only_what_the_present_policy_sampled_is_given_out():
    queue: ExperienceQueue[Item] = ExperienceQueue(max_staleness=0)
    queue.put(Item("old", 4))
    assert queue.take(5) is None
    queue.put(Item("new", 5))
    assert queue.take(5) == Item("new", 5)
    assert (queue.dropped, len(queue)) == (1, 0)


def test_items_come_out_in_order_until_they_are_more_than_max_staleness_versions_old():
    queue: ExperienceQueue[Item] = ExperienceQueue(max_staleness=2, capacity=4)
    for name, version in [("a", 1), ("b", 2), ("c", 3), ("d", 3)]:
        queue.put(Item(name, version))
    assert queue.take(3) == Item("a", 1)  # exactly 2 versions old
    assert queue.take(5) == Item("c", 3)  # b is 3 versions old
    assert queue.take(5) == Item("d", 3)
    assert queue.take(5) is None


def test_what_is_dropped_is_counted_and_told():
    told = []
    queue: ExperienceQueue[Item] = ExperienceQueue(
        max_staleness=1, capacity=3, on_drop=lambda item, staleness: told.append((item.name, staleness))
    )
    for name, version in [("a", 0), ("b", 1), ("c", 4)]:
        queue.put(Item(name, version))
    assert queue.take(4) == Item("c", 4)
    assert told == [("a", 4), ("b", 3)]
    assert queue.dropped == 2


def test_sampling_cannot_run_ahead_of_the_capacity():
    queue: ExperienceQueue[Item] = ExperienceQueue(max_staleness=1)
    queue.put(Item("a", 0))
    queue.put(Item("b", 0))
    assert queue.full
    with pytest.raises(OverflowError, match="holds its 2 items"):
        queue.put(Item("c", 0))


def test_an_empty_queue_is_filled_by_the_producer_and_a_filled_one_is_not():
    queue: ExperienceQueue[Item] = ExperienceQueue(max_staleness=1)
    produced = iter([Item("a", 0), Item("b", 3)])
    assert queue.take_or_produce(0, lambda: next(produced)) == Item("a", 0)
    queue.put(Item("waiting", 2))
    assert queue.take_or_produce(3, lambda: next(produced)) == Item("waiting", 2)
    assert queue.take_or_produce(3, lambda: next(produced)) == Item("b", 3)


def test_a_producer_that_only_makes_stale_items_stops_the_run():
    """A sampler that is never given new weights would be asked for ever."""
    queue: ExperienceQueue[Item] = ExperienceQueue(max_staleness=1)
    with pytest.raises(GuardStop, match=r"more than 1 versions older than policy 7.*version 6 or later\.\n.*Publish"):
        queue.take_or_produce(7, lambda: Item("stale", 5))


def test_experience_of_a_version_that_does_not_exist_yet_is_a_fault():
    queue: ExperienceQueue[Item] = ExperienceQueue(max_staleness=1)
    queue.put(Item("future", 3))
    with pytest.raises(ValueError, match="version 3 cannot exist yet at version 2"):
        queue.take(2)


@pytest.mark.parametrize("sizes", [{"max_staleness": -1}, {"max_staleness": 0, "capacity": 0}])
def test_sizes_that_mean_nothing_are_refused(sizes):
    with pytest.raises(ValueError, match="max_staleness >= 0 and capacity >= 1"):
        ExperienceQueue(**sizes)
