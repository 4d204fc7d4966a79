"""Intervals over few seeds: numbers worked out by hand, and their coverage when the truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from tests.catalogue import catalogue, few

from posttrain.lab.experiments.compare.estimates import (
    Estimate,
    difference,
    estimate,
    holm,
    level,
    paired,
    ratio,
    smallest_seen,
    with_p_value,
)

Comparing = Callable[..., Estimate]


def test_one_number_per_run_is_students_t_over_the_seeds():
    found = paired({0: 3.0, 1: 5.0, 2: 7.0}, {0: 2.0, 1: 3.0, 2: 4.0}, 0.95)
    # differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t quantile for 2 degrees of freedom 4.302653
    assert found.mean == pytest.approx(2.0)
    assert found.high - found.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.p == pytest.approx(0.0741799, abs=1e-6)  # for t = 2 sqrt(3)


def test_seeds_that_only_one_side_has_are_left_out():
    assert paired({0: 1.0, 1: 2.0, 5: 9.0}, {0: 0.0, 1: 0.0}, 0.95).seeds == 2


def test_how_many_times_as_large_is_a_mean_of_logarithms():
    found = ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 1.0}, 0.95)
    assert found.mean == pytest.approx(4.0)
    half = 12.7062047 * (math.log(8) - math.log(2)) / 2  # t with 1 degree of freedom, standard deviation / sqrt(2)
    assert (found.low, found.high) == pytest.approx((4 * math.exp(-half), 4 * math.exp(half)), rel=1e-6)


def test_seeds_and_examples_both_count():
    # seed means 0.5 and 1, example means 1 and 0.5: both variances are 0.125 / 2, both use t with 1 degree
    scores = {0: {"a": 1.0, "b": 0.0}, 1: {"a": 1.0, "b": 1.0}}
    found = estimate(scores, 0.95)
    assert found.mean == 0.75
    assert found.high - found.mean == pytest.approx(12.7062047 * math.sqrt(0.0625 + 0.0625), rel=1e-6)


def test_an_answer_that_one_seed_could_not_score_makes_no_new_examples_of_the_others():
    """Each example counts once, however many seeds answered it. Otherwise the interval would be too narrow."""
    scores = {s: {str(e): float(e % 2) for e in range(40)} for s in range(4)}
    whole = estimate(scores, 0.95)
    del scores[0]["0"], scores[0]["1"]
    found = estimate(scores, 0.95)
    assert found.mean == pytest.approx(whole.mean)
    assert found.high - found.low == pytest.approx(whole.high - whole.low, rel=1e-6)


def test_seeds_with_examples_of_their_own_have_all_of_them():
    scores = {s: {f"{s}:{e}": float(e % 2) for e in range(40)} for s in range(4)}
    (_, of_seeds), (error, of_examples) = estimate(scores, 0.95).parts
    assert (of_seeds, of_examples) == (3, 159)
    assert error == pytest.approx(math.sqrt(0.25 * 160 / 159 / 160))


def test_equal_answers_do_not_prove_equality():
    same = {seed: {str(e): float(e % 2) for e in range(100)} for seed in range(3)}
    found = difference(same, same, 0.95, share=True)
    assert found.mean == 0.0
    assert 0.01 < found.high < 0.05
    assert found.p > 0.9
    assert smallest_seen(found, 0.95) > found.high


def test_one_seed_says_nothing_about_others():
    found = difference({0: {"a": 1.0}}, {0: {"a": 0.0}}, 0.95)
    assert (found.mean, found.low, found.high) == (1.0, -math.inf, math.inf)
    assert math.isnan(found.p)
    assert smallest_seen(found, 0.95) == math.inf


def test_a_level_of_a_share_stays_within_its_bounds():
    found = level({seed: {str(e): 1.0 for e in range(20)} for seed in range(3)}, 0.95, share=True)
    assert found.high == 1.0
    assert 0.8 < found.low < 1.0


def test_p_is_where_the_interval_just_reaches_zero():
    scores = {s: {str(e): 0.3 + 0.1 * s + 0.01 * e for e in range(5)} for s in range(4)}
    p = with_p_value(estimate(scores, 0.95)).p
    touching = estimate(scores, 1 - p)
    assert touching.low == pytest.approx(0.0, abs=1e-6)


@catalogue("seeds", [2, 3, 5, 9])
@catalogue("apart", [0.0, 0.05, 0.3, -12.5])
@catalogue("scale", [1e-3, 1.0, 1e5])
@catalogue("compare", [paired, ratio])
def test_numbers_that_do_not_vary_prove_nothing(
    compare: Callable[..., Estimate], seeds: int, apart: float, scale: float
):
    """Steps to a target and shares of few examples come in coarse steps, so equal differences are no rarity. Rounding
    makes them differ in the last digits."""
    first = {s: (20.0 + 0.1 * s) * scale for s in range(seeds)}
    second = {s: v * (1 + apart / 20) if compare is ratio else v + apart * scale for s, v in first.items()}
    found = compare(first, second, 0.95)
    assert not found.has_interval
    assert math.isnan(found.p)
    assert found.high == math.inf
    assert smallest_seen(found, 0.95, as_ratio=compare is ratio) == math.inf
    found = compare({**first, 0: first[0] * 1.01}, second, 0.95)
    assert found.has_interval
    assert 0 < found.p <= 1


def test_examples_that_all_agree_prove_nothing():
    first = {s: {str(e): 0.1 * e for e in range(9)} for s in range(3)}
    second = {s: {e: score + 0.2 for e, score in of.items()} for s, of in first.items()}
    assert not difference(first, second, 0.95).has_interval
    assert not level({s: {str(e): 0.7 for e in range(9)} for s in range(3)}, 0.95).has_interval
    second[0]["3"] += 0.1
    assert difference(first, second, 0.95).p < 0.05


@pytest.mark.parametrize(
    ("given", "adjusted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.5], [0.5]),
        ([0.6, 0.6], [1.0, 1.0]),
        ([0.001, math.nan, 0.04], [0.002, math.nan, 0.04]),
    ],
)
def test_holm(given: list[float], adjusted: list[float]):
    assert holm(given) == pytest.approx(adjusted, nan_ok=True)


def simulated(dice: random.Random, seeds: int, *, seed_spread: float, arm_spread: float, shared: bool) -> Estimate:
    """Simulate two arms that are equally good over all seeds and prompts. Each seed moves an arm, each prompt suits one
    of the arms more, and answers are right or wrong."""
    prompts = [(dice.gauss(0, 1), dice.gauss(0, arm_spread)) for _ in range(24)]
    first, second = {}, {}
    for seed in range(seeds):
        if not shared:
            prompts = [(dice.gauss(0, 1), dice.gauss(0, arm_spread)) for _ in range(24)]
        for side, sign in ((first, 1), (second, -1)):
            moved = dice.gauss(0, seed_spread)
            chances = [1 / (1 + math.exp(-(easy + sign * suits + moved))) for easy, suits in prompts]
            name = "" if shared else f"{seed}:"
            side[seed] = {f"{name}{e}": float(dice.random() < chance) for e, chance in enumerate(chances)}
    differences = {s: {e: first[s][e] - second[s][e] for e in first[s]} for s in first}
    return estimate(differences, 0.95, pseudo=(-1.0, 0.0, 0.0, 1.0))


@pytest.mark.parametrize("seeds", few([2, 3, 5, 10], 3))
@pytest.mark.parametrize(("seed_spread", "arm_spread"), few([(0.0, 0.5), (0.3, 0.3), (1.5, 0.0)], (0.3, 0.3)))
@pytest.mark.parametrize("shared", [True, False])
def test_false_claims_are_no_more_frequent_than_stated(seeds, seed_spread, arm_spread, shared):
    dice, times = random.Random(f"{seeds}{seed_spread}{shared}"), 250
    found = [
        simulated(dice, seeds, seed_spread=seed_spread, arm_spread=arm_spread, shared=shared) for _ in range(times)
    ]
    false = sum(one.low > 0 or one.high < 0 for one in found)
    assert false <= 0.05 * times + 3 * math.sqrt(0.05 * 0.95 * times)  # three standard deviations above the rate


def test_a_clear_difference_is_seen():
    good = {s: {str(e): float(e % 10 != s) for e in range(100)} for s in range(3)}
    bad = {s: {str(e): float(e % 10 == s) for e in range(100)} for s in range(3)}
    found = difference(good, bad, 0.95, share=True)
    assert found.mean == pytest.approx(0.8)
    assert found.low > 0.6
    assert found.p < 1e-4
