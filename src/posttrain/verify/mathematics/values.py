"""What an answer can be: a number, an expression, a list, an interval, a matrix, words ... and how it was written."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from posttrain.verify.mathematics.polynomials import Ratio
from posttrain.verify.mathematics.tree import Node


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number. `percent`: written with the sign; the value is that of the number before it, by 100."""

    value: Fraction | int
    decimal: bool = False
    """Written as a decimal: what a tolerance needs of a gold."""
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Expression:
    """Anything else that arithmetic makes: √2 + π, 1 + 2i, x² + 1."""

    node: Node
    """As it was written: for numerical values."""
    ratio: Ratio
    """As it multiplies out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Several answers: `2, -2`, or the elements of a set."""

    items: tuple[Value, ...]
    braced: bool = False
    decimal: Fraction | None = None
    """The one number that it is if its comma is a decimal comma: of `2,74`."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Items between brackets: a point, a vector, an interval with two ends. (3, 1) is both until it is compared."""

    opening: str
    items: tuple[Value, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval with constant ends; a point is [a, a]."""

    low: Value
    high: Value
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A union of intervals, from left to right, none touching the next."""

    pieces: tuple[Piece, ...]
    inequality: bool = False
    """Written as the inequality whose solutions it is."""


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or the letter of a choice."""

    text: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits with the base they are written in: 101_2."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Colons:
    """A time or a ratio: 12:00, 3:1."""

    parts: tuple[Value, ...]
    half: str = ""
    """am or pm."""


@dataclass(frozen=True, slots=True)
class Equation:
    """Left minus right is zero; with `relation` other than "=", it is <, <= or ≠ zero."""

    difference: Ratio
    relation: str = "="
    result: Value | None = None
    """Of `m + n = 204` and `\\sin x = 1/2`, which say what something is and not what a letter is: the 204, the 1/2."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Mathematics that our grammar does not know."""


Meaning = Number | Expression | Listing | Bracket | Region | Matrix | Words | Based | Colons | Equation | Unread


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
    """The operations that were left undone: product, sum, \\int."""
