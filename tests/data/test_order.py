"""The rows of a step are a pure function of seed and step, and every epoch has every row once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.order import rows_for_step

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
