"""Every worked number, the limits, and agreement with brute force over all subsets."""

import itertools
import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.functional.estimators import (
    best_of_k,
    best_of_n_kl_bound,
    majority_at_k,
    pass_at_k,
    pass_hat_k,
    powers_of_two,
    vote_totals,
    weighted_vote,
)

VOTES, JUDGED = list("AAABBC"), [True, True, True, False, False, False]


@catalogue(
    "n, c, k, expected",
    [
        (8, 3, 1, 0.375),
        (8, 3, 2, 0.6428571429),
        (8, 3, 4, 0.9285714286),
        (8, 3, 5, 0.9821428571),
        (8, 3, 6, 1.0),
        (8, 3, 8, 1.0),
        (10, 1, 1, 0.1),
        (10, 1, 5, 0.5),
        (10, 1, 10, 1.0),
        (200, 1, 100, 0.5),
        (200, 5, 10, 0.2282844607),
    ],
)
def test_pass_at_k_gives_the_worked_numbers(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-10)


def test_the_product_form_agrees_and_drawing_with_replacement_is_too_low():
    product = 1 - math.prod(1 - 4 / j for j in range(8 - 3 + 1, 8 + 1))
    assert product == pytest.approx(pass_at_k(8, 3, 4), abs=1e-12)
    with_replacement = 1 - (1 - 3 / 8) ** 4
    assert with_replacement == pytest.approx(0.8474121094, abs=1e-10)
    assert with_replacement < pass_at_k(8, 3, 4)


def test_two_answers_are_both_correct_in_three_pairs_of_28():
    assert pass_hat_k(8, 3, 2) == pytest.approx(0.1071428571, abs=1e-10)


def test_problems_are_averaged_first_and_the_standard_error_is_over_problems():
    """For c = 3, 8, 0, 5 of 8, the sample consists of the four shares, and not of the 32 answers."""
    shares = [pass_at_k(8, c, 1) for c in (3, 8, 0, 5)]
    assert statistics.mean(shares) == 0.5
    assert statistics.stdev(shares) / math.sqrt(4) == pytest.approx(0.2104063529, abs=1e-10)


def test_the_best_of_three_of_five_scores_is_expected_at_079():
    assert best_of_k([0.1, 0.4, 0.4, 0.7, 0.9], 3) == pytest.approx(0.79)
    assert best_of_k([0.9, 0.4, 0.1, 0.7, 0.4], 3) == pytest.approx(0.79), "the order of the scores does not matter"


@catalogue("k, expected", [(1, 0.5), (3, 0.6), (5, 0.75), (6, 1.0)])
def test_the_majority_of_a_subset_of_aaabbc(k, expected):
    assert majority_at_k(VOTES, JUDGED, k) == pytest.approx(expected, abs=1e-12)


def test_weights_can_overrule_the_majority():
    weights = [0.2, 0.3, 0.1, 0.9, 0.4, 0.5]
    assert vote_totals(VOTES, weights) == pytest.approx({"A": 0.6, "B": 1.3, "C": 0.5})
    assert weighted_vote(VOTES, weights) == "B"
    assert weighted_vote([None, "C", "A"], [9.0, 0.5, 0.5]) == "C", "the first one wins a tie, and None cannot win"
    assert weighted_vote([None, None], [1.0, 1.0]) is None


@catalogue("n, expected", [(1, 0.0), (4, 0.6362943611), (16, 1.835088722)])
def test_kl_bound_of_best_of_n(n, expected):
    assert best_of_n_kl_bound(n) == pytest.approx(expected, abs=1e-9)


def test_an_unreadable_answer_never_wins_but_takes_a_place():
    assert majority_at_k([None, None, "A"], [False, False, True], 3) == 1.0
    assert majority_at_k([None, None, None], [False] * 3, 2) == 0.0
    assert majority_at_k([None, None, "A"], [False, False, True], 1) == pytest.approx(1 / 3)


def test_a_tie_is_shared_or_goes_to_the_answer_that_came_first():
    answers, correct = ["wrong", "right"], [False, True]
    assert majority_at_k(answers, correct, 2) == 0.5
    assert majority_at_k(answers, correct, 2, ties="first") == 0.0
    assert majority_at_k(answers[::-1], correct[::-1], 2, ties="first") == 1.0


def test_a_group_judged_both_ways_counts_with_its_correct_share():
    assert majority_at_k(["A", "A", "A", "B"], [True, True, False, False], 4) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_too_many_subsets_are_drawn_from_the_seed_and_agree_with_the_exact_count():
    """C(30, 15) is 155 million. All answers are in one group or unreadable: without ties, both definitions agree."""
    answers = [*["A"] * 12, *["B"] * 3, *[None] * 15]
    correct = [answer == "B" for answer in answers]
    exact = majority_at_k(answers, correct, 14)
    drawn = majority_at_k(answers, correct, 14, ties="first")
    assert drawn == majority_at_k(answers, correct, 14, ties="first"), "the same seed gives the same draw"
    assert drawn != majority_at_k(answers, correct, 14, ties="first", seed=1)
    assert drawn == pytest.approx(exact, abs=0.01)


def test_the_state_of_the_global_random_generator_is_neither_read_nor_moved():
    random.seed(7)
    expected = random.random()
    random.seed(7)
    majority_at_k(list("AABB" * 8), [True] * 32, 16, ties="first")
    assert random.random() == expected


@given(st.lists(st.sampled_from("ABCD") | st.none(), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_the_counted_majority_is_the_average_over_all_subsets(answers, data):
    correct = data.draw(st.lists(st.booleans(), min_size=len(answers), max_size=len(answers)))
    k = data.draw(st.integers(1, len(answers)))
    subsets = list(itertools.combinations(range(len(answers)), k))
    expected = statistics.mean(_shared_vote(answers, correct, subset) for subset in subsets)
    assert majority_at_k(answers, correct, k) == pytest.approx(expected, abs=1e-12)


def _shared_vote(answers, correct, subset) -> float:
    counts = Counter(answers[i] for i in subset if answers[i] is not None)
    tied = [answer for answer, count in counts.items() if count == max(counts.values())]
    shares = [statistics.mean(correct[i] for i in range(len(answers)) if answers[i] == answer) for answer in tied]
    return statistics.mean(shares) if shares else 0.0


@given(st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_pass_at_k_starts_at_the_share_ends_at_one_and_only_rises(n, data):
    c = data.draw(st.integers(0, n))
    curve = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert curve[0] == pytest.approx(c / n)
    assert curve[-1] == (c > 0)
    assert curve == sorted(curve)
    if c < n:
        assert all(pass_at_k(n, c + 1, k) >= curve[k - 1] for k in range(1, n + 1))
    assert all(pass_hat_k(n, c, k) <= curve[k - 1] for k in range(1, n + 1))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7), st.data())
@settings(max_examples=40, deadline=None)
def test_best_of_k_is_the_average_highest_score_of_all_subsets(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    expected = statistics.mean(max(subset) for subset in itertools.combinations(scores, k))
    assert best_of_k(scores, k) == pytest.approx(expected, abs=1e-9)


def test_large_counts_stay_exact():
    """C(10000, 5000) has 3,008 digits. A float factorial would be infinite, and 1 - x would lose a tiny x's digits."""
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_at_k(10**6, 1, 1) == 1e-6


@catalogue(
    "call, message",
    [
        (lambda: pass_at_k(4, 2, 5), "k = 5 of n = 4 answers; allowed: 1 <= k <= n"),
        (lambda: pass_at_k(4, 5, 2), "c = 5 correct answers of n = 4"),
        (lambda: pass_hat_k(4, 2, 0), "k = 0 of n = 4"),
        (lambda: best_of_k([], 1), "k = 1 of n = 0"),
        (lambda: majority_at_k(["A"], [], 1), "1 answers, but 0 judgements"),
        (lambda: majority_at_k(["A"], [True], 1, ties="last"), 'ties = \'last\'; allowed: "fractional", "first"'),
        (lambda: best_of_n_kl_bound(0), "n = 0; allowed: an integer of at least 1"),
    ],
)
def test_impossible_counts_are_refused_with_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()


def test_reported_k_are_the_powers_of_two_up_to_the_number_of_samples():
    assert [powers_of_two(n) for n in (0, 1, 4, 6, 8)] == [[], [1], [1, 2, 4], [1, 2, 4], [1, 2, 4, 8]]
