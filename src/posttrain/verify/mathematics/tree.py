"""The expression that an answer is written as, before anything is worked out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Literal:
    """A number as it is written; the value of 7% is 7/100."""

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
    """Written with a multiplication sign, or between brackets around numbers: 2 * 3, (2)(3)."""


@dataclass(frozen=True, slots=True)
class Quotient:
    above: Node
    below: Node
    signed: bool = False
    """Written with the sign ÷, which asks for a calculation."""


@dataclass(frozen=True, slots=True)
class Minus:
    of: Node


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """Both signs of a term; `flipped` for the lower sign first."""

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
    """A function of its arguments: sin, log, factorial, binom, abs, floor ..., or one with a name such as f."""

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
"""Letters that stand for numbers."""


def symbols_of(node: Node) -> frozenset[str]:
    """The letters in it other than π, e and i."""
    if isinstance(node, Symbol):
        return frozenset() if node.name in CONSTANTS else frozenset({node.name})
    return frozenset().union(*map(symbols_of, children(node)))


def free_symbols(node: Node) -> bool:
    """Whether there is any."""
    if isinstance(node, Symbol):
        return node.name not in CONSTANTS
    return any(map(free_symbols, children(node)))
