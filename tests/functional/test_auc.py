"""Areas under curves: by hand, in their limits, and the coverage of their intervals, also for clustered rows."""

from __future__ import annotations

import doctest
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import few

from posttrain.functional import auc
from posttrain.functional.auc import auc_change, auc_interval


@given(
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=8),
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=8),
)
def test_an_auc_is_the_share_of_pairs_in_order_and_turns_with_the_classes(positives, negatives):
    found = auc_interval(positives, negatives)
    pairs = [(a > b) + 0.5 * (a == b) for a in positives for b in negatives]
    assert found.mean == pytest.approx(statistics.fmean(pairs))
    assert 0 <= found.low <= found.mean <= found.high <= 1
    turned = auc_interval(negatives, positives)
    assert (turned.low, turned.mean, turned.high) == pytest.approx((1 - found.high, 1 - found.mean, 1 - found.low))


def test_classes_that_are_told_apart_completely_still_have_an_interval():
    found = auc_interval([2.0] * 20, [1.0] * 20)
    assert found.mean == found.high == 1
    assert 0.7 < found.low < 0.95
    change = auc_change(([2.0] * 20, [1.0] * 20), ([2.0] * 20, [1.0] * 20))
    assert change.mean == 0
    assert change.low < 0 < change.high


def test_the_intervals_of_an_auc_and_of_its_change_cover_what_they_say():
    """Normal scores one standard deviation apart have an AUC of Phi(1 / sqrt 2). Before, they were half as far."""
    dice, rounds = random.Random(1), 300
    truth, before_truth = (statistics.NormalDist().cdf(apart / math.sqrt(2)) for apart in (1.0, 0.5))
    covered = [0, 0]
    for _ in range(rounds):
        positives, negatives = ([dice.gauss(0, 1) for _ in range(size)] for size in (30, 50))
        before, after = (([x + apart for x in positives], negatives) for apart in (0.5, 1.0))
        found, change = auc_interval(*after), auc_change(before, after)
        covered[0] += found.low <= truth <= found.high
        covered[1] += change.low <= truth - before_truth <= change.high
    assert all(0.92 <= count / rounds <= 1.0 for count in covered), covered


def test_alone_each_row_is_its_own_cluster():
    positives, negatives = [0.9, 0.4, 0.7], [0.1, 0.5]
    alone = auc_interval(positives, negatives, clusters=([1, 2, 3], [4, 5]))
    assert alone == auc_interval(positives, negatives)


def test_copies_of_every_row_are_no_more_evidence_than_one():
    """Obuchowski (1997): a cluster's terms are added before they are squared. Perfect separation is covered, too."""
    for positives, negatives in (([0.9, 0.4, 0.7, 0.6], [0.1, 0.5, 0.65, 0.2]), ([1.0] * 8, [0.0] * 8)):
        alone, n = auc_interval(positives, negatives), len(positives)
        owners = [i for i in range(n) for _ in range(5)]
        copied = [[scores[i] for i in owners] for scores in (positives, negatives)]
        together = auc_interval(copied[0], copied[1], clusters=(owners, [n + i for i in owners]))
        assert together[:3] == pytest.approx(alone[:3])


def test_clusters_with_both_classes_have_what_they_share_counted():
    """Obuchowski (1997): var = sum over clusters of (a / M + b / N)^2. Compare with her formula for many clusters."""
    dice, scores, owners = random.Random(3), ([], []), ([], [])
    for owner in range(500):
        level = dice.gauss(0, 1)
        for _ in range(3):
            side = dice.random() < 0.5
            scores[side].append(level + dice.gauss(0, 1) - side)
            owners[side].append(owner)
    found = auc_interval(*scores, clusters=owners)
    sides = [[statistics.fmean((x > y) + 0.5 * (x == y) for y in scores[1]) for x in scores[0]]]
    sides.append([statistics.fmean((x > y) + 0.5 * (x == y) for x in scores[0]) for y in scores[1]])
    influence = dict.fromkeys(range(500), 0.0)
    for side, of in zip(sides, owners, strict=True):
        for value, owner in zip(side, of, strict=True):
            influence[owner] += (value - found.mean) / len(side)
    half = 1.96 * math.sqrt(sum(value**2 for value in influence.values()))
    assert found.high - found.low == pytest.approx(2 * half, rel=0.02)


@pytest.mark.parametrize(("mixed", "answers"), few([(False, 25), (False, 60), (True, 60)], (False, 25)))
def test_the_intervals_of_clustered_steps_cover_what_they_say(mixed, answers):
    """The steps of an answer share a level. Labels are one coin flip per answer, or one per step (mixed).

    The true AUC is that of two steps of different answers. Without clusters, the interval covers it 0.70 to 0.85 of the
    time if answers are right or wrong as a whole.
    """
    dice, rounds, covered = random.Random(4), 250, [0, 0]
    truths = [statistics.NormalDist().cdf(gap / math.sqrt(2 * 1.25)) for gap in (1.0, 0.5)]
    for _ in range(rounds):
        before, after, owners = ([], []), ([], []), ([], [])
        for answer in range(answers):
            levels, whole = (dice.gauss(0, 1), dice.gauss(0, 1)), answer % 5 < 2
            for _ in range(dice.randint(1, 7)):
                wrong = dice.random() < 0.4 if mixed else whole
                for scores, gap, level in ((after, 1.0, levels[0]), (before, 0.5, 0.6 * levels[0] + 0.8 * levels[1])):
                    scores[wrong].append(level + dice.gauss(0, 0.5) + gap * (not wrong))
                owners[wrong].append(answer)
        found, change = auc_interval(*after, clusters=owners), auc_change(before, after, clusters=owners)
        covered[0] += found.low <= truths[0] <= found.high
        covered[1] += change.low <= truths[0] - truths[1] <= change.high
    assert all(count / rounds >= 0.925 for count in covered), covered


def test_a_change_is_of_the_same_rows():
    with pytest.raises(ValueError, match="different numbers of positives or negatives before and after"):
        auc_change(([1.0], [2.0]), ([1.0, 2.0], [2.0]))


def test_examples_are_true():
    assert doctest.testmod(auc).failed == 0
