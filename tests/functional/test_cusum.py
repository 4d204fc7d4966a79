"""The cumulative sum: numbers worked out by hand, and its false alarms and delays, by simulation."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.functional.cusum import Cusum, largest_drop, log_likelihood_ratio, with_odds_times
from posttrain.functional.texts import distinct_ngrams, ranks, shared_share, spearman_within

P0, P1, H = 0.01, 0.05, 9.0


def test_two_yes_and_a_no_by_hand():
    """The sum is 2 log(0.05 / 0.01) + log(0.95 / 0.99) = 2 * 1.609438 - 0.041243 = 3.177633."""
    assert log_likelihood_ratio(2, 3, baseline=P0, target=P1) == pytest.approx(3.177633, abs=1e-6)


def test_the_sum_never_falls_below_0_and_remembers_where_its_rise_began():
    course = [Cusum()]
    for step, yes in enumerate([0, 1, 1, 0, 0], start=1):
        course.append(course[-1].after(step, yes, 32, baseline=P0, target=P1))
    assert [c.since for c in course] == [None, None, 2, 2, None, None]
    once = math.log(5) + 31 * math.log(0.95 / 0.99)  # 1.609438 - 1.278533
    assert [c.value for c in course] == pytest.approx([0, 0, once, 2 * once, 0, 0])


@given(st.lists(st.integers(0, 8), max_size=20), st.floats(0.005, 0.4), st.floats(1.5, 20))
def test_a_sum_is_0_or_has_a_beginning(yes, baseline, ratio):
    cusum = Cusum()
    for step, count in enumerate(yes, start=1):
        cusum = cusum.after(step, count, 8, baseline=baseline, target=with_odds_times(baseline, ratio))
        assert (cusum.value > 0) == (cusum.since is not None)
        assert cusum.since is None or 1 <= cusum.since <= step


def first_alarm(dice: random.Random, share: float, steps: int, limit: float, m: int = 32) -> int | None:
    cusum = Cusum()
    for step in range(1, steps + 1):
        yes = sum(dice.random() < share for _ in range(m))
        cusum = cusum.after(step, yes, m, baseline=P0, target=P1)
        if cusum.value >= limit:
            return step
    return None


def test_at_9_honest_runs_stay_silent_and_at_5_they_do_not():
    """There are 60 runs of 300 steps. With h = 9 about one in 150 fires, with h = 5 about one in four."""
    fired = {h: sum(first_alarm(random.Random(run), P0, 300, h) is not None for run in range(60)) for h in (5.0, H)}
    assert fired[H] <= 2
    assert fired[5.0] >= 8


@catalogue("share, least, most", [(0.05, 4, 10), (0.10, 2, 5), (0.20, 1, 3)])
def test_it_comes_in_time(share, least, most):
    """The median delay over 60 runs with 32 answers a step is 7 steps for 5% disagreement, 3 for 10%, 2 for 20%."""
    delays = [first_alarm(random.Random(run), share, 300, H) or 300 for run in range(60)]
    assert least <= statistics.median(delays) <= most


def test_the_change_is_dated_to_where_it_was():
    """After 60 honest steps 10% of the answers disagree. The estimate is off by a few steps."""
    errors = []
    for run in range(40):
        dice, cusum = random.Random(run), Cusum()
        for step in range(1, 200):
            share = P0 if step <= 60 else 0.1
            yes = sum(dice.random() < share for _ in range(32))
            cusum = cusum.after(step, yes, 32, baseline=P0, target=P1)
            if cusum.value >= H:
                assert cusum.since is not None
                errors.append(cusum.since - 61)
                break
    assert abs(statistics.median(errors)) <= 2


def test_a_drop_is_that_of_the_last_window_from_the_best_before_it():
    errors = [(score, 0.03) for score in (0.5, 0.6, 0.7, 0.7, 0.7, 0.6, 0.5, 0.5, 0.5)]
    drop = largest_drop(errors, 3)
    assert drop is not None
    assert (drop.before, drop.now, drop.best) == (pytest.approx(0.7), pytest.approx(0.5), 2)
    assert drop.z == pytest.approx(0.2 / (0.03 * math.sqrt(2 / 3)))
    assert largest_drop(errors[:5], 3) is None, "two windows do not fit side by side"


# --- texts -----------------------------------------------------------------------------------------------------------


def test_rank_correlation_within_groups_by_hand():
    """The ranks are 1 2 3 and 1 3 2, and 1 2 and 2 1: (1 + 0 + 0 - 0.5) / sqrt(2.5 * 2.5) = 0.2."""
    groups = [[(0.0, 5.0), (0.5, 9.0), (1.0, 7.0)], [(0.0, 8.0), (1.0, 3.0)]]
    assert spearman_within(groups) == pytest.approx((0.5 * 2 - 0.5) / 2.5)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=2, max_size=12))
def test_a_rank_correlation_does_not_see_how_things_are_measured(pairs):
    """A rising function of either variable, or a shift of the level of a group, does not change it."""
    one, other = spearman_within([pairs]), spearman_within([[(7 + 2 * x, math.exp(y)) for x, y in pairs]])
    assert one == pytest.approx(other, nan_ok=True)
    assert math.isnan(one) or -1 - 1e-9 <= one <= 1 + 1e-9


@given(st.lists(st.integers(0, 5), max_size=30))
def test_ranks_add_up(values):
    assert sum(ranks(values)) == pytest.approx(len(values) * (len(values) + 1) / 2)


def test_what_repeats_itself_has_few_distinct_sequences():
    assert distinct_ngrams(range(100), 4) == 1.0
    assert distinct_ngrams([7] * 100, 4) == pytest.approx(1 / 97)
    assert distinct_ngrams([7, 7], 4) == 1.0


def test_a_template_is_shared_by_different_prompts():
    """Eight equal answers to one prompt show a confident model, and not a template."""
    assert shared_share([("p", "x")] * 8) == 0.0
    assert shared_share([("p", "x")] * 4 + [("q", "x")] * 2 + [("q", "y")] * 2) == 0.75
    assert shared_share([]) == 0.0
