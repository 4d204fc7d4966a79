"""Shared by the tests of exact values: whether two texts have the same value."""

from __future__ import annotations

from posttrain.verify.mathematics.compare import same
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse


def verdict(gold: str, given: str, **options: object) -> bool | str | None:
    """The result of `same`, or the reason why the answer has no value."""
    how = Options(**options)  # type: ignore[arg-type]
    expected = parse(gold, how, gold=True)
    try:
        return same(expected, parse(given, how), how)
    except Unreadable as unreadable:
        return unreadable.reason
