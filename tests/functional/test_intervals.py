"""Intervals: published numbers, their limits, and their coverage by simulation."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue, few

from posttrain.functional.intervals import (
    Interval,
    mean_interval,
    paired_interval,
    ratio_interval,
    student_quantile,
    wilson,
)


@catalogue(
    "successes, n, low, high",
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_newcombes_published_limits(successes, n, low, high):
    """The source is Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    interval = wilson(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


def test_wilson_keeps_a_width_where_nothing_or_everything_was_solved():
    assert wilson(0, 64) == Interval(0.0, 0.0, pytest.approx(0.0566, abs=1e-4), 64)
    assert wilson(64, 64) == Interval(1.0, pytest.approx(0.9434, abs=1e-4), 1.0, 64)


@catalogue(
    "probability, freedom, expected",
    [
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 4, 2.776445105),
        (0.975, 9, 2.262157163),
        (0.995, 29, 2.756385904),
        (0.95, 100, 1.660234326),
        (0.975, 300, 1.967903011),
        (0.025, 9, -2.262157163),
    ],
)
def test_student_quantiles_are_those_of_the_tables(probability, freedom, expected):
    assert student_quantile(probability, freedom) == pytest.approx(expected, abs=1e-8)


def test_the_expansion_for_many_degrees_continues_the_sum_for_few():
    exact, expanded = student_quantile(0.975, 300), student_quantile(0.975, 301)
    assert 0 < exact - expanded < 3e-5
    assert student_quantile(0.975, 10**9) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-8)


def test_student_interval_of_a_small_sample_by_hand():
    """The values 1..5 have mean 3, variance 2.5 and standard error sqrt(0.5). t(0.975, 4) = 2.7764."""
    interval = mean_interval([1, 2, 3, 4, 5])
    assert interval.mean == 3
    assert interval.high - 3 == pytest.approx(2.776445105 * math.sqrt(0.5))
    assert 3 - interval.low == pytest.approx(interval.high - 3)


def test_bounded_interval_of_one_answer_per_problem_is_agresti_coull():
    z = statistics.NormalDist().inv_cdf(0.975)
    n, solved = 20, 3
    middle = (solved + z**2 / 2) / (n + z**2)
    half = z * math.sqrt(middle * (1 - middle) / (n + z**2))
    interval = mean_interval([1.0] * solved + [0.0] * (n - solved), bounds=(0, 1))
    assert interval == pytest.approx((0.15, middle - half, middle + half, 20))


def test_all_problems_solved_by_all_samples_is_not_certainty():
    """Student's t and the bootstrap would both give [1, 1] here."""
    interval = mean_interval([1.0] * 64, bounds=(0, 1))
    assert interval.mean == interval.high == 1.0
    assert 0.9 < interval.low < 0.96


def test_more_samples_per_problem_narrow_the_interval_and_more_problems_narrow_it_more():
    coarse = mean_interval([0.0, 1.0] * 20, bounds=(0, 1))
    fine = mean_interval([0.25, 0.75] * 20, bounds=(0, 1))
    many = mean_interval([0.25, 0.75] * 80, bounds=(0, 1))
    assert coarse.high - coarse.low > 1.5 * (fine.high - fine.low) > 2.5 * (many.high - many.low)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_a_bounded_interval_contains_its_mean_and_stays_inside_the_bounds(values):
    interval = mean_interval(values, bounds=(0, 1))
    assert 0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1
    assert interval.high > interval.low


def test_a_bounded_interval_moves_with_shift_and_scale():
    shares = [0.0, 0.25, 0.5, 1.0, 1.0]
    plain = mean_interval(shares, bounds=(0, 1))
    moved = mean_interval([4 * share - 2 for share in shares], bounds=(-2, 2))
    assert moved[:3] == pytest.approx([4 * x - 2 for x in plain[:3]])


def test_pairing_finds_what_two_separate_intervals_cannot():
    """Every problem improves by about 0.1, while the problems spread from 0 to 0.9."""
    before = [i / 40 for i in range(36)]
    after = [b + 0.1 + (0.02 if i % 2 else -0.02) for i, b in enumerate(before)]
    assert mean_interval(before).overlaps(mean_interval(after))
    difference = paired_interval(before, after)
    assert difference.mean == pytest.approx(0.1)
    assert difference.low > 0.09


def test_paired_interval_of_yes_and_no_by_hand():
    """Of 40 pairs 12 gained and 4 lost. Add z^2 / 4 to each, and take the normal interval of all of them."""
    before = [0.0] * 12 + [1.0] * 4 + [1.0] * 24
    after = [1.0] * 12 + [0.0] * 4 + [1.0] * 24
    z = statistics.NormalDist().inv_cdf(0.975)
    n = 40 + z**2
    middle = 8 / n
    half = z * math.sqrt(12 + 4 + z**2 / 2 - 8**2 / n) / n
    assert paired_interval(before, after, bounds=(0, 1)) == pytest.approx((0.2, middle - half, middle + half, 40))


def _coverage(draw, truth, interval, runs=1500) -> float:
    rng = random.Random(0)
    hits = 0
    for _ in range(runs):
        found = interval([draw(rng) for _ in range(40)])
        hits += found.low <= truth <= found.high
    return hits / runs


def _answers(rng, chances, samples):
    chance = rng.choice(chances)
    return sum(rng.random() < chance for _ in range(samples)) / samples


@pytest.mark.parametrize(
    ("chances", "samples"),
    few(
        [
            ((0.5,), 4),
            ((0.95,), 4),
            ((0.02,), 4),
            ((0.0, 1.0), 4),
            ((0.0, 0.0, 0.1, 0.9), 4),
            ((0.97,), 1),
            ((0.3,), 16),
        ],
        ((0.02,), 4),
        ((0.0, 1.0), 4),
        ((0.97,), 1),
    ),
)
def test_the_interval_over_problems_covers_the_truth_as_often_as_it_says(chances, samples):
    """There are 40 problems, each answered `samples` times at its own chance. 95 % is stated, 93 % is required."""
    covered = _coverage(
        lambda rng: _answers(rng, chances, samples),
        statistics.mean(chances),
        lambda shares: mean_interval(shares, bounds=(0, 1)),
    )
    assert covered >= 0.93


@catalogue("gain, loss", [(0.3, 0.1), (0.0, 0.0), (0.05, 0.0), (0.7, 0.0), (0.1, 0.1)])
def test_the_paired_interval_covers_the_truth_as_often_as_it_says(gain, loss):
    def pair(rng):
        chance = rng.random()
        return (0.0, 1.0) if chance < gain else (1.0, 0.0) if chance < gain + loss else (1.0, 1.0)

    covered = _coverage(pair, gain - loss, lambda pairs: paired_interval(*zip(*pairs, strict=True), bounds=(0, 1)))
    assert covered >= 0.93


@pytest.mark.slow
def test_student_covers_scores_without_bounds():
    assert _coverage(lambda rng: rng.gauss(3, 2), 3, mean_interval) == pytest.approx(0.95, abs=0.015)


def test_nothing_to_average_is_not_a_number_and_overlaps_everything():
    for empty in (wilson(0, 0), mean_interval([]), mean_interval([], bounds=(0, 1)), paired_interval([], [])):
        assert math.isnan(empty.mean)
        assert empty.n == 0
        assert empty.overlaps(wilson(64, 64))
    assert mean_interval([0.3]) == (0.3, -math.inf, math.inf, 1)


def test_overlap_is_sharing_a_value():
    assert Interval(0.2, 0.1, 0.3, 9).overlaps(Interval(0.4, 0.3, 0.5, 9))
    assert not Interval(0.2, 0.1, 0.3, 9).overlaps(Interval(0.4, 0.31, 0.5, 9))


@catalogue(
    "call, message",
    [
        (lambda: wilson(5, 4), "5 successes of 4; allowed: 0 <= successes <= n"),
        (lambda: wilson(1, 4, 95), "confidence = 95; allowed: between 0 and 1"),
        (lambda: mean_interval([0.5, 2.0], bounds=(0, 1)), "values from 0.5 to 2.0; allowed: between the"),
        (lambda: paired_interval([0.5], []), "1 values before, 0 after"),
        (lambda: paired_interval([0.5], [2.0], bounds=(0, 1)), "values outside the bounds 0 and 1"),
        (lambda: student_quantile(0.9, 0), "freedom 0; allowed: 0 < probability < 1, freedom >= 1"),
    ],
)
def test_what_has_no_interval_is_refused_with_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- means over tokens ------------------------------------------------------------------------------------------------


def test_a_ratio_over_equal_texts_is_a_mean():
    values = [0.3, 1.1, 0.7, 2.0]
    assert ratio_interval([8 * value for value in values], [8] * 4) == pytest.approx(mean_interval(values))


def test_a_mean_over_tokens_weighs_texts_by_their_length_and_its_spread_by_text():
    """The residuals x - R y use the R of the other texts' tokens. 12^2 / 40 = 3.6 texts determine the spread."""
    found = ratio_interval([1.0, 2.0, 9.0, 6.0], [2, 2, 4, 4])
    residuals = [(1.0 - 1.5 * 2) / 10, (2.0 - 1.5 * 2) / 10, (9.0 - 1.5 * 4) / 8, (6.0 - 1.5 * 4) / 8]
    half = student_quantile(0.975, 2) * 3 * statistics.stdev(residuals) / math.sqrt(4)
    assert found.mean == 1.5
    assert (found.low, found.high) == pytest.approx((1.5 - half, 1.5 + half))


def test_a_ratio_does_not_reach_beyond_what_it_can_be():
    """In two texts of a hundred tokens 90 and 60 are right. Student's t goes from -116 to 266 percent."""
    free, cut = (ratio_interval([90.0, 60.0], [100, 100], **given) for given in ({}, {"bounds": (0.0, 1.0)}))
    assert free.low < -1
    assert free.high > 2
    assert cut == Interval(0.75, 0.0, 1.0, 2)
    assert ratio_interval([3.0], [2], bounds=(0.0, math.inf)) == Interval(1.5, 0.0, math.inf, 1)
    assert ratio_interval([-1e-9, -1e-9], [1, 1], bounds=(0.0, 1.0)).low == -1e-9, (
        "the interval always contains the mean"
    )


def test_one_text_that_has_all_tokens_says_nothing_about_the_spread():
    assert ratio_interval([3.0, 0.0], [2, 0]) == Interval(1.5, -math.inf, math.inf, 2)


@catalogue(
    "ratio, lengths",
    [(ratio, lengths) for ratio in (0.0, 0.1, 0.5, 1.0) for lengths in ([5] * 5, [5, 7, 3], [1, 90], [2] * 64)],
)
def test_texts_of_equal_quotients_say_nothing_about_their_spread(ratio, lengths):
    """Five texts whose tokens are all right had the interval from 1 to 1."""
    sums = [ratio * length for length in lengths]
    bounded = ratio_interval(sums, lengths, bounds=(0.0, 1.0))
    assert 0 <= bounded.low <= bounded.mean <= bounded.high <= 1
    assert bounded.high - bounded.low > 0.05
    assert ratio_interval(sums, lengths) == (pytest.approx(ratio), -math.inf, math.inf, len(lengths))
    assert ratio_interval(sums, lengths, bounds=(0.0, math.inf))[1:] == (0.0, math.inf, len(lengths))


def test_equal_quotients_have_the_interval_of_their_effective_number():
    """Texts of 2, 2, 4 and 4 tokens carry as much as 3.6 equal ones; six equal texts carry as much as six values."""
    one, two = (
        ratio_interval([n * 1.0 for n in lengths], lengths, bounds=(0, 1)) for lengths in ([8] * 6, [2, 2, 4, 4])
    )
    assert one == pytest.approx(mean_interval([1.0] * 6, bounds=(0, 1)))
    z2 = statistics.NormalDist().inv_cdf(0.975) ** 2
    share = (3.6 + z2 / 2) / (3.6 + z2)
    assert two.low == pytest.approx(share - math.sqrt(z2 * share * (1 - share) / (3.6 + z2)))
    assert ratio_interval([5.0, 7.0, 2.9], [5, 7, 3], bounds=(0, 1)).low > 0.85, "texts that differ keep Student's t"


@catalogue("given_numbers", [([], []), ([0.0], [0])])
def test_no_token_has_no_mean(given_numbers):
    assert math.isnan(ratio_interval(*given_numbers).mean)


@pytest.mark.parametrize("n", few((5, 8, 40), 5))
def test_the_interval_of_a_token_mean_covers_what_it_says(n):
    """Texts differ in length, and a text's tokens share a level. The texts are independent, the tokens are not."""
    dice, covered, rounds = random.Random(0), 0, 1000
    for _ in range(rounds):
        lengths = [dice.randint(1, 20) for _ in range(n)]
        sums = [length * dice.gauss(2.0, 0.5) for length in lengths]
        found = ratio_interval(sums, lengths)
        covered += found.low <= 2.0 <= found.high
    assert 0.935 <= covered / rounds <= 0.98


@pytest.mark.parametrize("n", [2, 5, 64])
@pytest.mark.parametrize("value", [-1.0, 0.1, 0.5, 3.0])
def test_equal_values_say_nothing_about_their_spread(value, n):
    assert mean_interval([value] * n) == (pytest.approx(value), -math.inf, math.inf, n)
    assert paired_interval([value] * n, [value] * n) == (0.0, -math.inf, math.inf, n)


@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
@pytest.mark.parametrize(
    ("before", "change"), [([0.5], 0.01), ([0.1, 0.2, 0.3, 0.4], 0.01), ([-1.0], 2.0), ([0.3], -0.3)]
)
def test_equal_changes_are_certain_only_for_many_problems(before, change, scale):
    def of(n: int) -> Interval:
        values = [scale * before[i % len(before)] for i in range(n)]
        return paired_interval(values, [value + scale * change for value in values])

    few, many = of(2), of(400)
    assert few.low < 0 < few.high
    assert (many.low > 0) == (change > 0)
    assert (many.high < 0) == (change < 0)
    for found in (few, many):
        assert found.low < found.mean < found.high or found.mean in (found.low, found.high)
        assert found.high - found.low > 0


def test_differences_of_almost_equal_size_keep_students_interval():
    found = paired_interval([0.1, 0.2, 0.3], [0.2, 0.3, 0.4001])
    assert 0 < found.low < found.high < 0.2
