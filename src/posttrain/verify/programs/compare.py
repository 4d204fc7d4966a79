"""Compare the result from the sandbox with the expected one. Both are plain data here, and no code of theirs is called.

>>> same(1, True, "exact"), same(5050, 5050.0, "exact"), same((1, 2), [1, 2], "exact")
(False, False, False)
>>> same(5050, 5050.0, "float_ok"), same(1, True, "float_ok"), same(1, True, "python")
(True, False, True)
"""

from __future__ import annotations

import math
from typing import Any, Literal

Equality = Literal["exact", "float_ok", "python"]
"""The meaning of equality.

    exact      equal values and types in every part: True is not 1, 5050.0 is not 5050, a tuple is not a list
    float_ok   like exact, but a float may replace an integer and an integer a float
    python     `==`, as in an `assert` by the author of the dataset
"""


def same(expected: Any, given: Any, equality: Equality, *, tolerance: float = 0.0) -> bool:
    """Whether two values are equal. NaN equals nothing.

    With a tolerance, two floats may differ by max(tolerance, tolerance * |expected|); so may a float and an integer if
    `float_ok` allows them. This excludes items of sets and keys of dictionaries. The tolerance does not apply to
    "python": there the author of the test decides how close is enough.

    >>> same(0.3, 0.1 + 0.2, "exact"), same([0.3], [0.1 + 0.2], "exact", tolerance=1e-9)
    (False, True)
    """
    if equality == "python":
        return bool(expected == given)
    return _same(expected, given, float_ok=equality == "float_ok", tolerance=tolerance)


def _same(expected: Any, given: Any, **rules: Any) -> bool:
    kind = type(expected)
    if kind is not type(given):
        return rules["float_ok"] and {kind, type(given)} == {int, float} and _same_number(expected, given, **rules)
    if kind is float:
        return _same_number(expected, given, **rules)
    if kind in (list, tuple):
        return len(expected) == len(given) and all(
            _same(mine, yours, **rules) for mine, yours in zip(expected, given, strict=True)
        )
    if kind in (set, frozenset):
        found = {item: item for item in given}
        return expected == given and all(_same(item, found[item], **rules) for item in expected)
    if kind is dict:
        keys = {key: key for key in given}
        return expected.keys() == given.keys() and all(
            _same(key, keys[key], **rules) and _same(value, given[key], **rules) for key, value in expected.items()
        )
    return bool(expected == given)


def _same_number(expected: float, given: float, *, tolerance: float, float_ok: bool) -> bool:
    return expected == given or (bool(tolerance) and _is_close(expected, given, tolerance))


def _is_close(expected: float, given: float, tolerance: float) -> bool:
    """Whether two numbers are close. Infinity is not close to anything, nor is an integer too large for a float."""
    try:
        mine, yours = float(expected), float(given)
    except OverflowError:
        return False
    finite = math.isfinite(mine) and math.isfinite(yours)
    return finite and abs(mine - yours) <= max(tolerance, tolerance * abs(mine))


def same_output(expected: str, given: str, *, tolerance: float = 0.0) -> bool:
    """Compare output line by line. Blanks at the end of a line and empty lines at the end do not count.

    With a tolerance, two numbers in the same place may differ by max(tolerance, tolerance * |expected|), unless both
    are written as integers.

    >>> same_output("1 2\\n3\\n", "1 2  \\n3"), same_output("1 2", "1  2")
    (True, False)
    >>> same_output("0.5", "0.50000001"), same_output("0.5", "0.50000001", tolerance=1e-6)
    (False, True)
    """
    mine, yours = _lines(expected), _lines(given)
    if mine == yours:
        return True
    if not tolerance or len(mine) != len(yours):
        return False
    return all(_close(a.split(), b.split(), tolerance) for a, b in zip(mine, yours, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _close(expected: list[str], given: list[str], tolerance: float) -> bool:
    return len(expected) == len(given) and all(
        mine == yours or _close_words(mine, yours, tolerance) for mine, yours in zip(expected, given, strict=True)
    )


def _close_words(expected: str, given: str, tolerance: float) -> bool:
    """Whether two words are close numbers. Integers have no rounding error: different ones are not close."""
    try:
        mine, yours = float(expected), float(given)
        whole = expected.lstrip("+-").isdigit() and given.lstrip("+-").isdigit()
    except ValueError:
        return False
    return not whole and _is_close(mine, yours, tolerance)
