"""Micro-batches keep to the token budget, hold every row once, and are as few and as equal as possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.models.microbatches import plan_microbatches, plan_units
from posttrain.models.packing import Family

lengths = st.lists(st.integers(0, 300), max_size=60)
budgets = st.integers(1, 400)


@examples(60, 200)
@given(lengths, budgets)
def test_every_row_is_in_one_microbatch_and_the_budget_is_kept(lengths, budget):
    plan = plan_microbatches(lengths, budget)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        assert sum(lengths[row] for row in rows) <= budget or len(rows) == 1


@examples(40, 100)
@given(lengths, budgets)
def test_no_two_microbatches_would_fit_into_one(lengths, budget):
    """Their number is therefore at most twice the smallest possible one, for any lengths."""
    used = sorted(sum(lengths[row] for row in rows) for rows in plan_microbatches(lengths, budget))
    if len(used) > 1:
        assert used[0] + used[1] > budget


@examples(40, 100)
@given(lengths, budgets, st.randoms(use_true_random=False))
def test_the_plan_looks_at_lengths_only(lengths, budget, random):
    """Permuted rows give micro-batches of the same lengths."""
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


@examples(40, 100)
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), max_size=8), budgets, st.booleans(), st.data())
def test_units_with_a_common_prefix_are_counted_as_they_are_computed(own, budget, in_pairs, data):
    """Every unit occurs once; a family that fits stays together; only a single unit may exceed the budget (a unit that
    is a prefix of it and nothing more costs nothing)."""
    prefixes = [data.draw(st.integers(0, 60)) for _ in own]
    rows = [(family, length) for family, lengths in enumerate(own) for length in lengths]
    needed = [prefixes[family] + length for family, length in rows]
    families = [
        Family(tuple(row for row, (number, _) in enumerate(rows) if number == family), prefix)
        for family, prefix in enumerate(prefixes)
    ]
    size = 2 if in_pairs else 1
    units = [list(range(row, min(row + size, len(rows)))) for row in range(0, len(rows), size)]
    plan = plan_units(units, families, needed, budget)

    assert sorted(unit for part in plan for unit in part) == list(range(len(units)))
    for part in plan:
        inside = [row for unit in part for row in units[unit]]
        seen = {rows[row][0] for row in inside}
        computed = sum(rows[row][1] for row in inside) + sum(prefixes[family] for family in seen)
        assert computed <= budget or sum(any(rows[row][1] for row in units[unit]) for unit in part) <= 1
    if not in_pairs:
        for family in families:
            if prefixes[rows[family.rows[0]][0]] + sum(rows[row][1] for row in family.rows) <= budget:
                assert len([part for part in plan if {*part} & {*family.rows}]) == 1


def test_a_family_larger_than_the_budget_is_split_evenly():
    """Eight completions of 100 tokens after a prompt of 200, at most 700 tokens: two halves, each with the prompt."""
    family = Family(tuple(range(8)), prefix=200)
    plan = plan_units([[row] for row in range(8)], [family], [300] * 8, tokens_per_microbatch=700)
    assert [len(part) for part in plan] == [4, 4]


def test_micro_batches_are_balanced_by_attention_too():
    """Two rows of 8,192 tokens and sixteen of 1,024: as many tokens, but more pairs. The long rows go apart."""
    lengths = [8192, 8192, *[1024] * 16]
    families = [Family((row,), 0) for row in range(len(lengths))]
    plan = plan_units([[row] for row in range(len(lengths))], families, lengths, tokens_per_microbatch=16384)
    assert [len([row for row in part if row < 2]) for part in plan] == [1, 1]
