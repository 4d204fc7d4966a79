"""Intervals from `evaluation.json`, and their text form."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from posttrain.report.store import mapping, number
from posttrain.report.svg import compact, percent


class Span(NamedTuple):
    """An interval from `evaluation.json`. Limits that JSON could not hold are infinite again."""

    mean: float
    low: float
    high: float
    n: int

    def disjoint(self, other: Span) -> bool:
        return self.low > other.high or other.low > self.high

    @property
    def finite(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def span(value: Any) -> Span | None:
    """Turn `{"mean", "low", "high", "n"}` into a Span; None if there is no mean."""
    found = mapping(value)
    mean = number(found.get("mean"))
    if mean is None:
        return None
    low, high = number(found.get("low"), -math.inf), number(found.get("high"), math.inf)
    return Span(mean, low, high, int(number(found.get("n"), 0)))


def show_value(measure: str, value: float) -> str:
    """Return an accuracy in percent, any other measure as a plain number."""
    return percent(value) if measure == "accuracy" else compact(value)


def show_span(measure: str, found: Span) -> str:
    """Return text such as `95% (91% to 98%)`."""
    if not found.finite:
        return f"{show_value(measure, found.mean)} (no interval: {found.n} prompt{'' if found.n == 1 else 's'})"
    return f"{show_value(measure, found.mean)} ({show_value(measure, found.low)} to {show_value(measure, found.high)})"


def signed(measure: str, value: float) -> str:
    """Return a change with its sign; for an accuracy, in percentage points without the unit.

    >>> signed("accuracy", 0.19), signed("loss", -0.25)
    ('+19', '−0.25')
    """
    text = f"{100 * value:+.0f}" if measure == "accuracy" else f"{value:+.3g}"
    return text.replace("-", "−")


def show_change(measure: str, found: Span) -> str:
    """Return text such as `+19 points, interval +13 to +25`."""
    mean, low, high = (signed(measure, edge) for edge in found[:3])
    between = f"interval {low} to {high}" if found.finite else "no interval"
    return f"{mean}{' points' if measure == 'accuracy' else ''}, {between}"
