"""The possible values of an answer (a number, a list, an interval, words ...), and the tree of its expression."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from posttrain.verify.mathematics.polynomials import Ratio


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number. `percent`: written with a percent sign, and `value` is already divided by 100."""

    value: Fraction | int
    decimal: bool = False
    """Whether it is written as a decimal. A tolerance applies only to such a gold."""
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Expression:
    """Any other arithmetic value: √2 + π, 1 + 2i, x² + 1."""

    node: Node
    """The expression as written, for numerical values."""
    ratio: Ratio
    """The expression multiplied out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Several answers: `2, -2`, or the elements of a set."""

    items: tuple[Value, ...]
    braced: bool = False
    decimal: Fraction | None = None
    """The single number if the comma is a decimal comma, as in `2,74`."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Items between brackets: a point, a vector or an interval. The comparison decides which of them (3, 1) is."""

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
    """A union of intervals, from left to right, without touching neighbours."""

    pieces: tuple[Piece, ...]
    inequality: bool = False
    """Whether it is written as an inequality, whose solutions it contains."""


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or the letter of a choice."""

    text: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits with their base: 101_2."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Colons:
    """A time or a ratio: 12:00, 3:1."""

    parts: tuple[Value, ...]
    half: str = ""
    """The half of the day, am or pm; empty if not given."""


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation, left minus right = 0, or with another `relation`, <, <= or ≠ 0."""

    difference: Ratio
    relation: str = "="
    result: Value | None = None
    """The value of a formula, if the equation gives one: 204 in `m + n = 204`, 1/2 in `\\sin x = 1/2`."""


@dataclass(frozen=True, slots=True)
class Congruence:
    """A residue and its modulus: 4 and 9 in `x ≡ 4 (mod 9)`. `left` is the left side unless it is only a name."""

    residue: int
    modulus: int
    left: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """Mathematics that our grammar cannot read."""


Meaning = (
    Number | Expression | Listing | Bracket | Region | Matrix | Words | Based | Colons | Equation | Congruence | Unread
)


@dataclass(frozen=True, slots=True)
class Value:
    """A meaning with its text, unit and name."""

    text: str
    """The text as written, without spaces and commands that are only typesetting."""
    meaning: Meaning
    unit: str | None = None
    """The unit in its normal form: `cm` for centimeters."""
    name: str | None = None
    """The name on the left side: x in `x = 5`, f in `f(x) = x^2`."""
    computations: frozenset[str] = frozenset()
    """The operations that are left undone: product, sum, \\int."""
    dozens: Fraction | int | None = field(default=None, repr=False)
    """The number before "dozen", which may be a unit."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number as written. The value of 7% is 7/100."""

    value: Fraction | int
    decimal: bool = False
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter with its subscript; π, e and i are symbols too."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Product:
    factors: tuple[Node, ...]
    signed: bool
    """Whether it has a multiplication sign or brackets around numbers: 2 * 3, (2)(3)."""


@dataclass(frozen=True, slots=True)
class Quotient:
    above: Node
    below: Node
    signed: bool = False
    """Whether it has the sign ÷, which asks for a calculation."""


@dataclass(frozen=True, slots=True)
class Minus:
    of: Node


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """A term with both signs. `flipped`: the minus sign comes first."""

    of: Node
    flipped: bool


@dataclass(frozen=True, slots=True)
class Power:
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Root:
    radicand: Node
    degree: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: sin, log, factorial, binom, abs, floor ..., or a named function such as f."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix by rows."""

    rows: tuple[tuple[Node, ...], ...]


Node = Literal | Symbol | Sum | Product | Quotient | Minus | PlusMinus | Power | Root | Call | Grid


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sum(terms=parts) | Product(factors=parts) | Call(arguments=parts):
            return parts
        case Quotient():
            return (node.above, node.below)
        case Minus() | PlusMinus():
            return (node.of,)
        case Power():
            return (node.base, node.exponent)
        case Root():
            return (node.radicand,)
        case Grid():
            return tuple(cell for row in node.rows for cell in row)
        case _:
            return ()


def contains(node: Node, kind: type[PlusMinus] | type[Grid]) -> bool:
    return isinstance(node, kind) or any(contains(child, kind) for child in children(node))


CONSTANTS = frozenset("πe∞i")
"""Letters that denote numbers."""


def symbols_of(node: Node) -> frozenset[str]:
    """The letters in an expression other than π, e and i."""
    if isinstance(node, Symbol):
        return frozenset() if node.name in CONSTANTS else frozenset({node.name})
    return frozenset().union(*map(symbols_of, children(node)))


def free_symbols(node: Node) -> bool:
    """Whether an expression has letters other than π, e and i."""
    if isinstance(node, Symbol):
        return node.name not in CONSTANTS
    return any(map(free_symbols, children(node)))
