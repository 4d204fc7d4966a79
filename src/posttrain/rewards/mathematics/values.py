"""What an answer can be: a number, an expression, a list, an interval, a matrix, words ... and how it was written."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number. `percent`: written with the sign; the value is that of the number before it, by 100."""

    value: Fraction | int
    decimal: bool = False
    """Written as a decimal: what a tolerance needs of a gold."""
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """Mathematics that our grammar does not know."""


Meaning = Number | Unread


@dataclass(frozen=True, slots=True)
class Value:
    """A meaning with what stood around it."""

    text: str
    """As it was written, without the spaces and commands that only set type."""
    meaning: Meaning
    unit: str | None = None
    """In one spelling: `cm` for centimeters."""
    name: str | None = None
    """Of `x = 5` and `f(x) = x^2`: x and f(x)."""
    computations: frozenset[str] = frozenset()
    """The operations that were left undone: `product`, `\\sum`."""
