"""Reliability, calibration errors and correlations: by hand, in their limits, and how often the intervals are right."""

from __future__ import annotations

import doctest
import math
import random

import pytest
import torch

from posttrain.functional import calibration
from posttrain.functional.calibration import (
    by_chance,
    calibration_error,
    even_edges,
    expected_calibration_error,
    pearson,
    reliability,
    root_mean_square_error,
    spearman,
)

TENTHS = even_edges(0.0, 1.0)


def drawn(n: int, seed: int, shift: float = 0.0) -> tuple[list[float], list[float]]:
    """Predictions, and outcomes that are right with that probability plus a shift."""
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
    """And many do not: it falls with the root of their number."""
    few, many = drawn(40, 0), drawn(4000, 0)
    assert calibration_error(*few, edges=TENTHS).mean == pytest.approx(by_chance(few[0], TENTHS), abs=0.06)
    assert by_chance(many[0], TENTHS) == pytest.approx(by_chance(few[0], TENTHS) / 10, rel=0.3)


def test_a_wrong_calibration_is_told_from_chance():
    p, y = drawn(400, 1, shift=-0.3)
    found = calibration_error(p, y, edges=TENTHS)
    assert found.low > by_chance(p, TENTHS)
    assert found == calibration_error(p, y, edges=TENTHS)  # nothing is random


def test_the_interval_covers_the_true_error_about_as_often_as_it_says():
    """Of 60 samples with a shift that leaves every bin by 0.2, the true ECE; 95% are promised."""
    covered = 0
    for seed in range(60):
        dice = random.Random(seed)
        p = [0.25 + 0.5 * dice.random() for _ in range(150)]
        y = [float(dice.random() < x - 0.2) for x in p]
        found = calibration_error(p, y, edges=TENTHS)
        covered += found.low <= 0.2 <= found.high
    assert covered >= 52


def test_predictions_that_belong_together_are_drawn_together():
    """Ten copies of each prediction are no more evidence than one."""
    p, y = drawn(60, 2, shift=-0.2)
    alone = calibration_error(p, y, edges=TENTHS)
    copies = [i for i in range(60) for _ in range(10)]
    together = calibration_error([p[i] for i in copies], [y[i] for i in copies], edges=TENTHS, clusters=copies)
    assert together.mean == pytest.approx(alone.mean)
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.2)


def test_a_batch_of_resamples_gives_one_error_each():
    p, y = (torch.rand(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    each = [float(expected_calibration_error(a, b, TENTHS)) for a, b in zip(p, y, strict=True)]
    assert expected_calibration_error(p, y, TENTHS).tolist() == pytest.approx(each)


def test_the_root_of_the_mean_squared_error():
    found = root_mean_square_error([1.0, 2.0, 3.0], [1.0, 4.0, 3.0])
    assert found.mean == pytest.approx(math.sqrt(4 / 3))
    assert found.low == 0 < found.mean < found.high


@pytest.mark.parametrize("measure", [pearson, spearman])
def test_a_correlation_covers_the_true_one(measure):
    """Of pairs of normal numbers with a correlation of 0.6; that of the ranks is 6 / pi asin(0.3)."""
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


@pytest.mark.parametrize("nothing", [calibration_error([], [], edges=TENTHS).mean, by_chance([], TENTHS)])
def test_nothing_has_no_calibration(nothing):
    assert math.isnan(nothing)


def test_examples_are_true():
    assert doctest.testmod(calibration).failed == 0
