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


def same(expected: Any, given: Any, equality: Equality) -> bool:
    """No NaN is equal to anything."""
    if equality == "python":
        return bool(expected == given)
    return _same(expected, given, float_ok=equality == "float_ok")


def _same(expected: Any, given: Any, *, float_ok: bool) -> bool:
    kind = type(expected)
    if kind is not type(given):
        numbers = {kind, type(given)} == {int, float}
        return float_ok and numbers and expected == given
    if kind in (list, tuple):
        return len(expected) == len(given) and all(
            _same(mine, yours, float_ok=float_ok) for mine, yours in zip(expected, given, strict=True)
        )
    if kind in (set, frozenset):
        found = {item: item for item in given}
        return expected == given and all(_same(item, found[item], float_ok=float_ok) for item in expected)
    if kind is dict:
        keys = {key: key for key in given}
        return expected.keys() == given.keys() and all(
            _same(key, keys[key], float_ok=float_ok) and _same(value, given[key], float_ok=float_ok)
            for key, value in expected.items()
        )
    return bool(expected == given)


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
    """Whole numbers have no error of rounding: two that differ are different. Infinity is close to nothing."""
    try:
        mine, yours = float(expected), float(given)
        whole = expected.lstrip("+-").isdigit() and given.lstrip("+-").isdigit()
    except ValueError:
        return False
    finite = math.isfinite(mine) and math.isfinite(yours)
    return finite and not whole and abs(mine - yours) <= max(tolerance, tolerance * abs(mine))
