"""Whether two answers are the same."""

from __future__ import annotations

from posttrain.rewards.mathematics.options import Options
from posttrain.rewards.mathematics.values import Number, Value


def same(gold: Value, given: Value, options: Options) -> bool | None:
    """Whether `given` is the gold answer; None where only algebra with symbols can tell (`symbolic.equivalent`).

    Unreadable("unevaluated") when `given` leaves a computation undone that the gold does not.
    """
    if gold.text == given.text:
        return True
    if isinstance(gold.meaning, Number) and isinstance(given.meaning, Number):
        return gold.meaning.value == given.meaning.value
    return None
