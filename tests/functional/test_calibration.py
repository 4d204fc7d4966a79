"""Reliability, calibration errors and correlations: by hand, in their limits, and the coverage of the intervals."""

from __future__ import annotations

import doctest
import math
import random
import statistics
from itertools import product

import pytest
from tests.catalogue import catalogue, few

from posttrain.functional import calibration
from posttrain.functional.calibration import (
    by_chance,
    calibration_error,
    even_edges,
    pearson,
    reliability,
    root_mean_square_error,
    spearman,
)

TENTHS = even_edges(0.0, 1.0)


def drawn(n: int, seed: int, shift: float = 0.0) -> tuple[list[float], list[float]]:
    """Return predictions, and outcomes that are right with the predicted probability plus a shift."""
    dice = random.Random(seed)
    predicted = [dice.random() for _ in range(n)]
    return predicted, [float(dice.random() < min(1.0, max(0.0, p + shift))) for p in predicted]


def test_bins_hold_what_lies_between_their_edges_and_the_last_edge_too():
    bins = reliability([0.05, 0.1, 0.95, 1.0], [0.0, 1.0, 1.0, 1.0], edges=TENTHS, bounds=(0.0, 1.0))
    assert [(b.n, b.predicted, b.found.mean) for b in bins] == [(1, 0.05, 0), (1, 0.1, 1), (2, pytest.approx(0.975), 1)]
    assert all(b.found.low < b.found.high for b in bins)


def test_bins_of_ratings_hold_equally_many():
    bins = reliability([float(x) for x in range(25)], [float(2 * x) for x in range(25)])
    assert sum(b.n for b in bins) == 25
    assert {b.n for b in bins} == {2, 3}
    assert all(b.found.mean == pytest.approx(2 * b.predicted) for b in bins)


def test_the_error_is_the_weighted_distance_of_the_bins():
    p, y = [0.9, 0.8, 0.3, 0.2], [1.0, 0.0, 0.0, 0.0]
    expected = sum(b.n / 4 * abs(b.found.mean - b.predicted) for b in reliability(p, y, edges=[0, 0.5, 1]))
    assert calibration_error(p, y, edges=[0, 0.5, 1]).mean == pytest.approx(expected)
    assert expected == pytest.approx(0.5 * 0.35 + 0.5 * 0.25)


def test_few_right_probabilities_show_an_error_that_chance_explains():
    """With many probabilities it does not: the error falls with the root of their number."""
    few, many = drawn(40, 0), drawn(4000, 0)
    chance = by_chance(*few, edges=TENTHS)
    assert calibration_error(*few, edges=TENTHS).mean == pytest.approx(chance, abs=0.06)
    assert by_chance(*many, edges=TENTHS) == pytest.approx(chance / 10, rel=0.3)


def test_the_error_by_chance_is_the_mean_of_those_that_right_probabilities_show():
    found = [drawn(300, seed) for seed in range(100)]
    errors = [calibration_error(p, y, edges=TENTHS).mean for p, y in found]
    expected = [by_chance(p, y, edges=TENTHS) for p, y in found]
    assert statistics.fmean(errors) == pytest.approx(statistics.fmean(expected), rel=0.08)


def test_a_wrong_calibration_is_told_from_chance():
    p, y = drawn(400, 1, shift=-0.3)
    found = calibration_error(p, y, edges=TENTHS)
    assert found.low > by_chance(p, y, edges=TENTHS)
    assert found == calibration_error(p, y, edges=TENTHS)  # nothing is random


def test_targets_that_are_shares_scatter_as_they_do_and_not_as_coins():
    """There are 200 shares, and every score is 0.07 too low. Coin flips with these probabilities would explain that,
    but such shares do not."""
    dice = random.Random(0)
    found = [0.1 + 0.8 * dice.random() for _ in range(200)]
    low = [y - 0.07 for y in found]
    assert by_chance(low, found, edges=TENTHS) < 0.02
    assert calibration_error(low, found, edges=TENTHS).low > 0.03
    near = [y + dice.gauss(0, 0.05) for y in found]
    assert calibration_error(near, found, edges=TENTHS).low == 0


def test_what_was_foreseen_with_certainty_and_came_is_no_sign_of_too_little_confidence():
    """There are 50 predictions of 98%, and all 50 came true. One in three correct models would show that."""
    found = calibration_error([0.98] * 50, [1.0] * 50, edges=TENTHS)
    assert found.low == 0
    assert found.high > 0.05


def answers(seed: int, n: int = 60) -> tuple[list[float], list[float], list[int]]:
    """Return correct probabilities for the four steps of n answers. Most steps of an answer share one draw."""
    dice, steps = random.Random(seed), []
    for owner in range(n):
        level, shared = dice.gauss(0, 1.5), dice.random()
        for _ in range(4):
            p = 1 / (1 + math.exp(-level - dice.gauss(0, 0.7)))
            steps.append((p, float((shared if dice.random() < 0.8 else dice.random()) < p), owner))
    p, y, owners = zip(*steps, strict=True)
    return list(p), list(y), list(owners)


@pytest.mark.slow
def test_a_calibrated_model_of_clustered_steps_is_rarely_called_wrong():
    """The promise is at most 2.5%."""
    found = [answers(seed) for seed in range(200)]
    called = sum(calibration_error(p, y, edges=TENTHS, clusters=owners).low > 0 for p, y, owners in found)
    assert called / 200 <= 0.045


@pytest.mark.parametrize(
    ("shift", "n"), few(product((0.0, 0.05, 0.2), (50, 200, 1000)), (0.0, 50), (0.05, 200), (0.2, 50))
)
def test_the_interval_covers_the_true_error_at_least_as_often_as_it_says(shift, n):
    """The shift gives every bin the same error, the true ECE. The promised coverage over 150 samples is 95%."""
    covered = 0
    for seed in range(150):
        dice = random.Random(seed)
        p = [0.25 + 0.5 * dice.random() for _ in range(n)]
        y = [float(dice.random() < x - shift) for x in p]
        found = calibration_error(p, y, edges=TENTHS)
        covered += found.low <= shift <= found.high
    assert covered / 150 >= 0.95


def test_predictions_that_belong_together_are_drawn_together():
    """Ten copies of each prediction are no more evidence than one."""
    p, y = drawn(60, 2, shift=-0.2)
    alone = calibration_error(p, y, edges=TENTHS)
    copies = [i for i in range(60) for _ in range(10)]
    together = calibration_error([p[i] for i in copies], [y[i] for i in copies], edges=TENTHS, clusters=copies)
    assert together.mean == pytest.approx(alone.mean)
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.2)


def test_the_root_of_the_mean_squared_error():
    """The squares are 0, 4, 0. Their spread, sqrt(3) of the mean, exceeds normal errors' sqrt(2). t(2) = 4.303."""
    found, factor = root_mean_square_error([1.0, 2.0, 3.0], [1.0, 4.0, 3.0]), math.exp(4.30265273 / 2)
    expected = [math.sqrt(4 / 3) * scale for scale in (1, 1 / factor, factor)]
    assert found == pytest.approx((*expected, 3))
    assert root_mean_square_error([1.0, 1.0], [1.0, 1.0]) == (0, 0, 0, 2)
    assert root_mean_square_error([1.0], [3.0]) == (2, 0, math.inf, 1)
    assert math.isnan(root_mean_square_error([], []).mean)


@pytest.mark.parametrize("n", few((5, 10, 40), 5))
def test_the_interval_of_the_root_covers_that_of_normal_errors(n):
    dice, covered, rounds = random.Random(n), 0, 1000
    for _ in range(rounds):
        found = root_mean_square_error([dice.gauss(0, 1) for _ in range(n)], [0.0] * n)
        covered += found.low <= 1 <= found.high
    assert 0.935 <= covered / rounds <= 0.99


@catalogue("measure", [pearson, spearman])
def test_a_correlation_covers_the_true_one(measure):
    """The pairs are normal with a correlation of 0.6, so the correlation of their ranks is 6 / pi asin(0.3)."""
    true = 0.6 if measure is pearson else 6 / math.pi * math.asin(0.3)
    covered = 0
    for seed in range(200):
        dice = random.Random(seed)
        x = [dice.gauss(0, 1) for _ in range(50)]
        y = [0.6 * value + 0.8 * dice.gauss(0, 1) for value in x]
        found = measure(x, y)
        covered += found.low <= true <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_ranks_do_not_care_about_the_scale_and_share_ties():
    x, y = [1.0, 5.0, 2.0, 2.0, 9.0], [0.0, 3.0, 1.0, 2.0, 2.5]
    assert spearman(x, y).mean == pytest.approx(spearman([math.exp(v) for v in x], y).mean)
    assert spearman(x, y).mean == pytest.approx(pearson([1, 4, 2.5, 2.5, 5], [1, 5, 2, 3, 4]).mean)


def test_what_does_not_vary_has_no_correlation():
    assert math.isnan(pearson([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]).mean)
    assert math.isnan(pearson([0.1] * 7, [0.1] * 7).mean), "their mean is rounded, so the values seem to differ from it"


@catalogue("nothing", [calibration_error([], [], edges=TENTHS).mean, by_chance([], [], edges=TENTHS)])
def test_nothing_has_no_calibration(nothing):
    assert math.isnan(nothing)


def test_examples_are_true():
    assert doctest.testmod(calibration).failed == 0
