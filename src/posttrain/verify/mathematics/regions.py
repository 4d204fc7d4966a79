"""Intervals and their unions in a normal form: from left to right, without touching neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.verify.mathematics.approximate import approximate
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.polynomials import Algebra, exactly, number
from posttrain.verify.mathematics.structure import NotAnExpression
from posttrain.verify.mathematics.values import (
    Bracket,
    Expression,
    Listing,
    Minus,
    Node,
    Number,
    Piece,
    Region,
    Symbol,
    Value,
    free_symbols,
)

INFINITY = Value("∞", Expression(Symbol("∞"), number(0)))
MINUS_INFINITY = Value("-∞", Expression(Minus(Symbol("∞")), number(0)))


def place(value: Value, options: Options) -> float:
    """The position of an end on the real line. NotAnExpression unless it is a real constant or infinite."""
    match value.meaning:
        case Number():
            try:
                return float(value.meaning.value)
            except OverflowError:
                return math.copysign(math.inf, value.meaning.value)
        case Expression(node=Symbol("∞")):
            return math.inf
        case Expression(node=Minus(Symbol("∞"))):
            return -math.inf
        case Expression() if not free_symbols(value.meaning.node):
            found = approximate(value.meaning.node, lambda name: math.nan, options)
            if found is not None and abs(found.imag) < 1e-9:
                return found.real
    raise NotAnExpression


def equal_ends(one: Value, other: Value) -> bool:
    """Whether two ends are exactly equal."""
    if one.text == other.text:
        return True
    infinite = [_infinite(end) for end in (one, other)]
    if infinite[0] is not None or infinite[1] is not None:
        return infinite[0] == infinite[1]
    ratios = [
        number(end.meaning.value) if isinstance(end.meaning, Number) else end.meaning.ratio
        for end in (one, other)
        if isinstance(end.meaning, Number | Expression)
    ]
    return len(ratios) == 2 and Algebra().equal(*ratios)


def _infinite(end: Value) -> Node | None:
    """Infinity with its sign; None for a finite end."""
    node = end.meaning.node if isinstance(end.meaning, Expression) else None
    return node if node in (Symbol("∞"), Minus(Symbol("∞"))) else None


def interval(bracket: Bracket, options: Options) -> Region:
    """The interval between two ends. NotAnExpression if they are not ends or the first is not below the second."""
    if len(bracket.items) != 2 or bracket.opening not in "([" or bracket.closing not in ")]":
        raise NotAnExpression
    low, high = bracket.items
    below, above = place(low, options), place(high, options)
    if not below < above and not (bracket.opening == "[" and bracket.closing == "]" and equal_ends(low, high)):
        raise NotAnExpression
    return Region((Piece(low, high, bracket.opening == "[", bracket.closing == "]"),))


def points(listing: Listing, options: Options) -> Region:
    """The elements of a set of numbers, as intervals of length zero."""
    for item in listing.items:
        place(item, options)
    return united([Region((Piece(item, item, True, True),)) for item in listing.items], options)


def united(regions: Sequence[Region], options: Options) -> Region:
    pieces = sorted(
        (piece for region in regions for piece in region.pieces),
        key=lambda piece: (place(piece.low, options), not piece.low_closed, place(piece.high, options)),
    )
    joined: list[Piece] = []
    for piece in pieces:
        if not joined or not _touch(joined[-1], piece, options):
            joined.append(piece)
            continue
        last = joined.pop()
        reach, extent = place(last.high, options), place(piece.high, options)
        if equal_ends(last.high, piece.high):
            joined.append(Piece(last.low, last.high, last.low_closed, last.high_closed or piece.high_closed))
        else:
            longest = last if reach > extent else piece
            joined.append(Piece(last.low, longest.high, last.low_closed, longest.high_closed))
    return Region(tuple(joined), inequality=any(region.inequality for region in regions))


def mirrored(region: Region, options: Options) -> Region:
    """The real x with |x| in a region of one or two pieces: (-2, -1] and [1, 2) for [1, 2)."""
    pieces: list[Piece] = []
    for piece in region.pieces:
        if place(piece.low, options) >= 0:
            pieces += [Piece(_minus(piece.high), _minus(piece.low), piece.high_closed, piece.low_closed), piece]
        elif place(piece.high, options) > 0:
            pieces.append(Piece(_minus(piece.high), piece.high, piece.high_closed, piece.high_closed))
        else:
            raise NotAnExpression
    return united([Region((piece,), region.inequality) for piece in pieces], options)


def _minus(end: Value) -> Value:
    if (infinite := _infinite(end)) is not None:
        return INFINITY if isinstance(infinite, Minus) else MINUS_INFINITY
    match end.meaning:
        case Number(value):
            return Value(exactly(-value), Number(-value))
        case Expression(node, ratio):
            ratio = Algebra().multiply(number(-1), ratio)
            return Value(ratio.key(), Expression(Minus(node), ratio))
        case _:
            raise NotAnExpression


def _touch(left: Piece, right: Piece, options: Options) -> bool:
    """Whether two pieces have nothing between them."""
    if equal_ends(left.high, right.low):
        return left.high_closed or right.low_closed
    return place(left.high, options) > place(right.low, options)


def without(region: Region, holes: Region, options: Options) -> Region:
    """The region without the points in `holes`."""
    pieces = list(region.pieces)
    for hole in holes.pieces:
        if not equal_ends(hole.low, hole.high):
            raise NotAnExpression
        at = place(hole.low, options)
        cut: list[Piece] = []
        for piece in pieces:
            if place(piece.low, options) < at < place(piece.high, options):
                cut.append(Piece(piece.low, hole.low, piece.low_closed, False))
                cut.append(Piece(hole.low, piece.high, False, piece.high_closed))
            else:
                low = piece.low_closed and not equal_ends(piece.low, hole.low)
                high = piece.high_closed and not equal_ends(piece.high, hole.low)
                cut.append(Piece(piece.low, piece.high, low, high))
        pieces = cut
    return Region(tuple(pieces))


def line() -> Region:
    """All real numbers."""
    return Region((Piece(MINUS_INFINITY, INFINITY, False, False),))
