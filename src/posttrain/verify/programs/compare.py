"""Whether what came out of the sandbox is what was expected. Both are plain data here; nothing of theirs is called.

>>> same(1, True, "exact"), same(5050, 5050.0, "exact"), same((1, 2), [1, 2], "exact")
(False, False, False)
>>> same(5050, 5050.0, "float_ok"), same(1, True, "float_ok"), same(1, True, "python")
(True, False, True)
"""

from __future__ import annotations

import math
from typing import Any, Literal

Equality = Literal["exact", "float_ok", "python"]
"""When two values are the same.

    exact      equal and of equal types, in every part: True is not 1, 5050.0 not 5050, a tuple no list
    float_ok   the same, but a float may stand for an integer and an integer for a float
    python     `==`, which is what an `assert` of the dataset's author says
"""


def same(expected: Any, given: Any, equality: Equality, *, tolerance: float = 0.0) -> bool:
    """No NaN is equal to anything.

    With a tolerance, two floats, and where `float_ok` allows it a float and an integer, may differ by
    max(tolerance, tolerance * |expected|), in items of sets and keys of dictionaries excepted. It changes nothing about
    "python", where the author of the test says how close is close.

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
    """Infinity is close to nothing, and neither is an integer that no float can hold."""
    try:
        mine, yours = float(expected), float(given)
    except OverflowError:
        return False
    finite = math.isfinite(mine) and math.isfinite(yours)
    return finite and abs(mine - yours) <= max(tolerance, tolerance * abs(mine))


def same_output(expected: str, given: str, *, tolerance: float = 0.0) -> bool:
    """Output is compared line by line; blanks at the end of a line and empty lines at the end do not count.

    With a tolerance, words at the same place that are both numbers, and not both written as integers, may differ by
    max(tolerance, tolerance * |expected|).

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
    """Whole numbers have no error of rounding: two that differ are different."""
    try:
        mine, yours = float(expected), float(given)
        whole = expected.lstrip("+-").isdigit() and given.lstrip("+-").isdigit()
    except ValueError:
        return False
    return not whole and _is_close(mine, yours, tolerance)
