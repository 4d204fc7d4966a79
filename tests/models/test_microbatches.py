"""Micro-batches keep to the token budget, hold every row once, and are as few and as equal as can be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.models.microbatches import plan_microbatches

lengths = st.lists(st.integers(0, 300), max_size=60)
budgets = st.integers(1, 400)


@settings(max_examples=200, deadline=None)
@given(lengths, budgets)
def test_every_row_is_in_one_microbatch_and_the_budget_is_kept(lengths, budget):
    plan = plan_microbatches(lengths, budget)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        assert sum(lengths[row] for row in rows) <= budget or len(rows) == 1


@settings(max_examples=100, deadline=None)
@given(lengths, budgets)
def test_no_two_microbatches_would_fit_into_one(lengths, budget):
    """So at most twice the smallest possible number, whatever the lengths are."""
    used = sorted(sum(lengths[row] for row in rows) for rows in plan_microbatches(lengths, budget))
    if len(used) > 1:
        assert used[0] + used[1] > budget


@settings(max_examples=100, deadline=None)
@given(lengths, budgets, st.randoms(use_true_random=False))
def test_the_plan_looks_at_lengths_only(lengths, budget, random):
    """Permuted rows: micro-batches of the same lengths."""
    order = list(range(len(lengths)))
    random.shuffle(order)
    straight = plan_microbatches(lengths, budget)
    permuted = plan_microbatches([lengths[row] for row in order], budget)
    assert plan_microbatches(lengths, budget) == straight
    assert sorted(sorted(lengths[row] for row in rows) for rows in straight) == sorted(
        sorted(lengths[order[row]] for row in rows) for rows in permuted
    )


def test_work_is_spread_evenly():
    plan = plan_microbatches([60] * 9, tokens_per_microbatch=300)
    assert sorted(len(rows) for rows in plan) == [4, 5]


def test_a_row_longer_than_the_budget_goes_alone():
    assert plan_microbatches([5, 50, 5], tokens_per_microbatch=10) == [[0, 2], [1]]


def test_no_rows_need_no_microbatch():
    assert plan_microbatches([], 10) == []


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        plan_microbatches([1], 0)
