"""Equality by type and value, by number, or with Python's `==`; output compared by lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.verify.programs.compare import same, same_output


@catalogue(
    "expected, given, exact, float_ok, python",
    [
        (1, 1, True, True, True),
        (1, True, False, False, True),
        (True, 1, False, False, True),
        (5050, 5050.0, False, True, True),
        (0.5, 0.5, True, True, True),
        (2.0, 2, False, True, True),
        (2, 2.5, False, False, False),
        ([1, 2], (1, 2), False, False, False),
        ([1, 2], [1, 2.0], False, True, True),
        ([1, [True]], [1, [1]], False, False, True),
        ({1, 2}, {1, 2.0}, False, True, True),
        ({True, 2}, {1, 2}, False, False, True),
        ({"a": 1}, {"a": True}, False, False, True),
        ({1: "a"}, {True: "a"}, False, False, True),
        ({"a": 1}, {"a": 1, "b": 2}, False, False, False),
        ("a", b"a", False, False, False),
        (None, None, True, True, True),
        (None, 0, False, False, False),
        (float("nan"), float("nan"), False, False, False),
        (0, -0.0, False, True, True),
        ([1], [1, 1], False, False, False),
        (10**400, float("inf"), False, False, False),
    ],
)
def test_the_three_equalities(expected, given, exact, float_ok, python):
    found = [same(expected, given, equality) for equality in ("exact", "float_ok", "python")]
    assert found == [exact, float_ok, python]


@pytest.mark.slow
@given(st.recursive(st.integers() | st.text() | st.booleans(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_every_value_is_itself(value):
    assert same(value, value, "exact")


@catalogue(
    "expected, given, tolerance, equal",
    [
        ("1\n2\n", "1\n2", 0, True),
        ("1\n2", "1 \n2\t\n\n", 0, True),
        ("1\r\n2\r\n", "1\n2\n", 0, True),
        ("1 2", "1  2", 0, False),
        ("1\n2", "1\n\n2", 0, False),
        (" 1", "1", 0, False),
        ("", "\n", 0, True),
        ("yes", "Yes", 0, False),
        ("0.333333", "0.3333333", 0, False),
        ("0.333333", "0.3333333", 1e-6, True),
        ("1000000.0", "1000001", 1e-6, True),
        ("1000000", "1000001", 1e-6, False),
        ("inf", "5", 1e-6, False),
        ("a 1.0", "b 1.0", 1e-6, False),
        ("1.0 2.0", "1.0", 1e-6, False),
        ("inf", "nan", 1e-6, False),
        ("1", "nan", 1e-6, False),
    ],
)
def test_output_is_compared_line_by_line(expected, given, tolerance, equal):
    assert same_output(expected, given, tolerance=tolerance) is equal


@catalogue(
    "expected, given, close",
    [
        (0.3, 0.1 + 0.2, True),
        ([0.3, (1.0,)], [0.1 + 0.2, (1.0 + 1e-12,)], True),
        ({"a": 0.3}, {"a": 0.1 + 0.2}, True),
        (1e12, 1e12 + 100.0, True),
        (0.3, 0.31, False),
        (3, 4, False),
        (10**400, 10**400 + 1, False),
        (float("inf"), 1e308, False),
        (0.0, float("nan"), False),
        (1, True, False),
        (1, 1.0, False),
    ],
)
def test_with_a_tolerance_floats_may_be_close_and_nothing_else(expected, given, close):
    assert same(expected, given, "exact", tolerance=1e-9) is close
    assert same(expected, given, "exact") is False or expected == given


def test_with_float_ok_a_tolerance_holds_between_a_float_and_an_integer_that_fits_one():
    assert same(3, 3.0000000001, "float_ok", tolerance=1e-6)
    assert not same(3, 4, "float_ok", tolerance=10.0)
    assert not same(10**400, 1e308, "float_ok", tolerance=1e-6)
