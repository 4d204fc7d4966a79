"""A catalogue goes through every member and hides no failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

SEEN: list[tuple[int, str, str]] = []


@catalogue("number", [1, 2])
@catalogue("letter, other", [("a", "x"), ("b", "y")])
def test_all_combinations_are_seen(number: int, letter: str, other: str):
    SEEN.append((number, letter, other))
    if len(SEEN) == 4:
        assert SEEN == [(1, "a", "x"), (1, "b", "y"), (2, "a", "x"), (2, "b", "y")]


@catalogue("name", ["left", "right"])
@given(value=st.integers(0, 3))
def test_drawn_values_stand_beside_it(name: str, value: int):
    assert name in ("left", "right")
    assert 0 <= value <= 3


def test_every_failure_is_told_by_the_name_of_its_member():
    @catalogue("number", [1, 2, 3], ids=["one", "two", "three"])
    def only_two(number: int):
        assert number == 2

    with pytest.raises(BaseExceptionGroup, match="2 of 3 members") as found:
        only_two()
    assert [error.__notes__ for error in found.value.exceptions] == [["number: one"], ["number: three"]]


def test_it_is_skipped_only_where_all_members_are():
    @catalogue("number", [1, 2])
    def skips(number: int):
        if number < 3:
            pytest.skip("too small")

    with pytest.raises(pytest.skip.Exception, match="too small"):
        skips()


def test_an_error_that_did_not_come_is_told_with_the_others():
    @catalogue("number", [1, 2, 3])
    def raises_below_two(number: int):
        with pytest.raises(ValueError, match="invalid literal"):
            int("1" if number > 1 else "one")

    with pytest.raises(BaseExceptionGroup, match="2 of 3 members") as found:
        raises_below_two()
    assert [error.__notes__ for error in found.value.exceptions] == [["number: 2"], ["number: 3"]]
