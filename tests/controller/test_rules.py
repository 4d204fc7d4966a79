"""Admission, ages of tokens and pieces of a row: the test vectors from the specification of the rules."""

from __future__ import annotations

import pytest
from tests.catalogue import catalogue

from posttrain.controller.admission import capacity
from posttrain.controller.messages import Limits
from posttrain.controller.staleness import kept, lags


def limits(C: int, P: int, D: int) -> Limits:
    return Limits(prompts_per_step=P, group_size=1, last_version=1000, run_ahead=D, max_groups=C)


@catalogue(
    "C, P, D, version, accepted, running, expected",
    [
        (100, 4, 0, 0, 0, 0, 4),
        (100, 4, 0, 0, 0, 4, 0),
        (100, 4, 0, 1, 4, 0, 4),
        (100, 4, 1, 0, 0, 0, 8),
        (6, 4, 1, 0, 0, 0, 6),
        (100, 4, 1, 0, 3, 4, 1),
        (100, 4, 1, 1, 4, 4, 4),
        (100, 4, 2, 5, 20, 9, 3),
        (100, 4, 1, 3, 17, 3, 0),
        (100, 4, 0, 0, 0, 3, 1),  # one of four was voided
        (100, 4, 1, 5, 22, 0, 6),  # resumed with two groups waiting
    ],
)
def test_capacity(C, P, D, version, accepted, running, expected):
    assert capacity(limits(C, P, D), version, accepted, running) == expected


def test_no_group_is_begun_that_no_step_will_train():
    short = Limits(prompts_per_step=4, group_size=1, last_version=3, run_ahead=5)
    assert capacity(short, 0, 0, 0) == 12
    assert capacity(short, 2, 8, 4) == 0


@catalogue(
    "version, bound, versions, expected_lags, expected",
    [
        (0, 0, [0, 0, 0], [0, 0, 0], [1, 1, 1]),
        (6, 2, [3, 3, 4, 5, 6], [3, 3, 2, 1, 0], [0, 0, 1, 1, 1]),
        (6, 3, [3, 3, 4, 5, 6], [3, 3, 2, 1, 0], [1, 1, 1, 1, 1]),
        (6, 0, [5, 5, 6], [1, 1, 0], [0, 0, 1]),
        (6, 2, [2, 2, 3], [4, 4, 3], [0, 0, 0]),
    ],
)
def test_tokens_older_than_the_bound_are_not_kept(version, bound, versions, expected_lags, expected):
    assert lags(version, versions) == expected_lags
    assert kept(version, versions, bound) == [bool(keep) for keep in expected]


def test_a_version_that_does_not_exist_yet_is_refused():
    with pytest.raises(ValueError, match="version 6 is trained on a token of version 7, which does not exist yet"):
        kept(6, [7], 2)


def test_tokens_that_were_not_sampled_are_never_kept():
    assert kept(0, [-1, 0], 5) == [False, True]


def test_versions_that_are_published_now_and_then_are_allowed_their_age():
    assert kept(3, [2, 0], 1, publish_every=2) == [True, False]
    assert kept(2, [0], 1, publish_every=2) == [True]
