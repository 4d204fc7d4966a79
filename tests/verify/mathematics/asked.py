"""What the tests of exact values share: one question, asked of two texts."""

from __future__ import annotations

from posttrain.verify.mathematics.compare import same
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse


def verdict(gold: str, given: str, **options: object) -> bool | str | None:
    """What `same` says, or the reason why the answer has no value."""
    how = Options(**options)  # type: ignore[arg-type]
    expected = parse(gold, how, gold=True)
    try:
        return same(expected, parse(given, how), how)
    except Unreadable as unreadable:
        return unreadable.reason
