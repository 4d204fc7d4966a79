"""Length rewards: published worked numbers, values shared in a group, and settings that would reward the wrong
length."""

from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import ConfigError, DataError
from posttrain.functional.shaping import soft_overlong as soft_overlong_tensor
from posttrain.rewards import length
from posttrain.rewards.length import arora_zanette, cosine, finished, kimi_length, l1_exact, l1_max, soft_overlong


def ids(*lengths: int) -> list[range]:
    return [range(n) for n in lengths]


@pytest.mark.parametrize(
    ("n", "right", "wrong"),
    [
        (0, 1, -1),
        (25, 0.9267766953, -0.9267766953),
        (50, 0.75, -0.75),
        (75, 0.5732233047, -0.5732233047),
        (100, 0.5, -0.5),
        (130, 0.5, -0.5),
    ],
)
def test_the_cosine_falls_for_right_answers_and_rises_for_wrong_ones(n, right, wrong):
    values = [cosine("", range(n), correct, max_length=100) for correct in (True, False)]
    assert values == pytest.approx([right, wrong], abs=1e-9)
    assert [value.reason for value in values] == ["correct", "wrong"]


def test_kimi_compares_the_lengths_of_a_group_and_never_rewards_a_wrong_answer():
    values = kimi_length([""] * 4, ids(100, 200, 400, 300), [0] * 4, [True, True, True, False])
    assert values == pytest.approx([0.5, 1 / 6, -0.5, -1 / 6])
    short_but_wrong = kimi_length([""] * 2, ids(1, 9), [0, 0], [False, True])
    assert short_but_wrong == [0.0, -0.5]


def test_kimi_is_0_where_all_are_equally_long_and_groups_do_not_mix():
    values = kimi_length([""] * 4, ids(5, 5, 900, 901), [0, 0, 1, 1], [True] * 4)
    assert values == [0.0, 0.0, 0.5, -0.5]


def test_arora_zanette_standardises_over_the_right_answers_alone():
    values = arora_zanette([""] * 4, ids(100, 200, 400, 9), [3] * 4, [True, True, True, False], alpha=0.1)
    assert values == pytest.approx([0.9744415253, 0.9566420421, 0.9208118157, 0.0], abs=1e-9)
    assert arora_zanette([""], ids(7), [0], [True], alpha=0.1) == [0.95]


def test_what_is_not_known_to_be_right_or_wrong_has_no_length_reward():
    for verdict in (
        cosine("", (), None, max_length=1),
        kimi_length([""], ids(1), [0], [None])[0],
        arora_zanette([""], ids(1), [0], [None])[0],
    ):
        assert (verdict.score, verdict.reason) == (None, "not_applicable")


def test_l1_exact_and_max():
    assert 1 + l1_exact("", range(1234), 1000) == pytest.approx(0.9298)
    assert l1_max("", range(1234), 1000) == pytest.approx(0.4298)
    assert [l1_max("", range(n), 1000).score for n in (0, 10_000)] == [pytest.approx(0.8), 0.0]
    assert [l1_exact("", range(n), 10).reason for n in (9, 10, 11)] == ["too_short", "within", "too_long"]


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_the_overlong_penalty_is_the_one_that_dapo_computes_on_tensors(n, max_length, buffer):
    buffer = min(buffer, max_length)
    expected = soft_overlong_tensor(torch.tensor([n]), max_length, buffer)
    assert soft_overlong("", range(n), max_length=max_length, buffer=buffer) == pytest.approx(float(expected), abs=1e-6)


def test_the_overlong_penalty_of_the_paper():
    lengths = (80, 81, 85, 90, 95, 100, 101, 150)
    values = [soft_overlong("", range(n), max_length=100, buffer=20) for n in lengths]
    assert values == pytest.approx([0, -0.05, -0.25, -0.5, -0.75, -1, -1, -1])


def test_a_completion_that_was_cut_is_not_finished():
    assert [finished("", cut).score for cut in (False, True)] == [1.0, 0.0]
    assert [finished("", cut, reward=0, penalty=2).score for cut in (False, True)] == [0.0, -2.0]
    assert finished("", True).reason == "truncated"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: soft_overlong("", (), max_length=10, buffer=20), "buffer = 20; allowed: 0 < buffer <= max_length"),
        (lambda: cosine("", (), True, max_length=0), "max_length = 0"),
        (lambda: l1_max("", (), 5, alpha=-1), "alpha = -1"),
        (lambda: arora_zanette([], [], [], [], alpha=2), "would pay less for right answers"),
        (lambda: finished("", True, penalty=-1), "penalty = -1"),
    ],
)
def test_settings_that_turn_the_reward_around_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_target_that_is_no_number_is_an_error_of_the_row():
    with pytest.raises(DataError, match="target_length is 'long'"):
        l1_exact("", (), "long")  # type: ignore[arg-type]


def test_the_examples_in_the_source_hold():
    assert doctest.testmod(length).failed == 0
