"""Seed and step alone decide the rows of a step, and every epoch has every row once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.order import Strata, rows_for_step

seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 60)


@given(seed=seeds, size=sizes, per_step=st.integers(1, 25), epochs=st.integers(1, 3))
def test_every_epoch_has_every_row_once_also_where_steps_cross_its_end(seed, size, per_step, epochs):
    steps = -(-epochs * size // per_step)
    read = [row for step in range(1, steps + 1) for row in rows_for_step(seed, step, per_step, size)]
    for epoch in range(epochs):
        assert sorted(read[epoch * size : (epoch + 1) * size]) == list(range(size))


@given(seed=seeds, size=sizes, per_step=st.integers(1, 25), steps=st.permutations(range(1, 12)))
def test_a_step_can_be_computed_without_those_before_it(seed, size, per_step, steps):
    in_order = {step: rows_for_step(seed, step, per_step, size) for step in range(1, 12)}
    assert {step: rows_for_step(seed, step, per_step, size) for step in steps} == in_order


@given(seed=seeds, size=sizes, factor=st.integers(1, 5))
def test_the_order_does_not_depend_on_the_size_of_the_steps(seed, size, factor):
    wide = rows_for_step(seed, 1, 4 * factor, size)
    narrow = [row for step in range(1, 5) for row in rows_for_step(seed, step, factor, size)]
    assert wide == narrow


def test_seeds_and_epochs_give_different_orders():
    orders = [tuple(rows_for_step(seed, epoch, 50, 50)) for seed in range(5) for epoch in range(1, 6)]
    assert len(set(orders)) == len(orders)


def test_the_first_row_of_an_epoch_is_uniform():
    """4000 seeds, 8 rows: each comes first 500 times on average, with a standard deviation of 21."""
    firsts = Counter(rows_for_step(seed, 1, 1, 8)[0] for seed in range(4000))
    assert all(abs(firsts[row] - 500) < 5 * 21 for row in range(8))


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="step 0, per_step 1 and size 1 must all be at least 1"):
        rows_for_step(0, 0, 1, 1)


# --- strata -----------------------------------------------------------------------------------------------------------

labels = st.lists(st.sampled_from("abc"), min_size=1, max_size=60)


@given(seed=seeds, kinds=labels, per_step=st.integers(1, 25), epochs=st.integers(1, 3))
def test_stratified_epochs_have_every_row_once(seed, kinds, per_step, epochs):
    size, strata = len(kinds), Strata.by(kinds)
    steps = -(-epochs * size // per_step)
    read = [row for step in range(1, steps + 1) for row in rows_for_step(seed, step, per_step, size, strata)]
    for epoch in range(epochs):
        assert sorted(read[epoch * size : (epoch + 1) * size]) == list(range(size))


@given(seed=seeds, kinds=labels, per_step=st.integers(1, 25))
def test_a_step_holds_each_kind_in_its_share(seed, kinds, per_step):
    """A kind of n rows has one row in each n-th of an epoch. Any part of the epoch therefore has the kind's share to
    within one row, and the part's length is the sum of the shares to within one row per kind."""
    size, strata = len(kinds), Strata.by(kinds)
    for step in range(1, size // per_step + 1):
        rows = rows_for_step(seed, step, per_step, size, strata)
        for kind in set(kinds):
            share = kinds.count(kind) / size
            assert abs(sum(kinds[row] == kind for row in rows) - share * per_step) <= 1 + share * len(set(kinds))


def test_two_kinds_of_equal_number_are_halves_of_each_step():
    kinds = ["Yes", "No"] * 100
    for step in range(1, 11):
        rows = rows_for_step(0, step, 20, 200, Strata.by(kinds))
        assert sum(kinds[row] == "Yes" for row in rows) == 10


@pytest.mark.slow
def test_rows_of_a_kind_are_shuffled_and_a_kind_of_one_row_stands_anywhere():
    """4000 seeds, 8 rows of one kind and one of another. Each of the 8 comes first 500 times. The other row comes
    between two of them in 7 of 8 cases, so 500 times at each of 7 places, and 250 times at either end. The standard
    deviation of 500 is 21."""
    strata = Strata.by(["a"] * 8 + ["b"])
    orders = [rows_for_step(seed, 1, 9, 9, strata) for seed in range(4000)]
    firsts = Counter(next(row for row in order if row < 8) for order in orders)
    places = Counter(order.index(8) for order in orders)
    assert all(abs(firsts[row] - 500) < 5 * 21 for row in range(8))
    assert all(abs(places[place] - (500 if 0 < place < 8 else 250)) < 5 * 21 for place in range(9))
