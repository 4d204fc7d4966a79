r"""One statement of an answer: `x = 5`, `0 \le x < 1`, `f(x) = x^2`, `2x + z = 5`, or a single thing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from posttrain.verify.mathematics.bases import FUNCTIONS
from posttrain.verify.mathematics.compare import agree
from posttrain.verify.mathematics.congruences import congruence
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.polynomials import ONE, Atom, Ratio, atom, exactly, number
from posttrain.verify.mathematics.regions import INFINITY, MINUS_INFINITY, mirrored, place
from posttrain.verify.mathematics.structure import NotAnExpression, is_label, name_of, spelled, split
from posttrain.verify.mathematics.things import Things
from posttrain.verify.mathematics.tokens import Token, words
from posttrain.verify.mathematics.values import (
    CONSTANTS,
    Bracket,
    Call,
    Colons,
    Congruence,
    Equation,
    Expression,
    Matrix,
    Number,
    Piece,
    Product,
    Region,
    Symbol,
    Value,
    Words,
    free_symbols,
    symbols_of,
)

_ORDER = ("<", "<=", ">", ">=", "≠")
_RELATIONS = ("=", "≈", "∈", *_ORDER)
_PERCENT = frozenset({"percent", "pct", "percentage"})
UNDONE = words("undone")
"""Commands that ask for a calculation."""
QUANTITIES = words("quantities")
"""Words that name a quantity: Area = x². Any other word would be an answer itself."""


class Statements(Things):
    """Reads statements: equations, inequalities, and things."""

    def read(self, tokens: Sequence[Token]) -> Value:
        tokens = [Token("operator", "%") if t.kind == "word" and t.text in _PERCENT else t for t in tokens]
        if (parts := congruence(tokens)) is not None:
            return self._congruence(*parts)
        sides, relations = split(tokens, _RELATIONS)
        if not relations:
            return _chain(tokens) or self.thing(tokens)
        if not all(sides):
            raise NotAnExpression
        if relations == ["∈"]:
            return replace(self.thing(sides[1]), name=spelled(sides[0]))
        if set(relations) <= {"=", "≈"}:
            return self._equality(sides, relations)
        if set(relations) <= set(_ORDER):
            return self._inequality(sides, relations)
        raise NotAnExpression

    def _congruence(self, left: Sequence[Token], right: Sequence[Token], modulus: Sequence[Token]) -> Value:
        """A congruence with integers on the right. A residue of the modulus or more still has to be reduced."""
        numbers = [value.meaning for side in (right, modulus) if (value := self.thing(side)).unit is None]
        integers = [int(one.value) for one in numbers if isinstance(one, Number) and one.value == int(one.value)]
        name = name_of(left) if left else None
        if len(integers) < 2 or integers[1] < 1 or (left and not any(token.kind == "letter" for token in left)):
            raise NotAnExpression
        residue, divisor = integers
        meaning = Congruence(residue, divisor, "" if name else spelled(left))
        undone = frozenset({"residue"} if abs(residue) >= divisor else ())
        return Value("", meaning, name=name, computations=undone)

    def _equality(self, sides: list[Sequence[Token]], relations: list[str]) -> Value:
        """The value of an equality: the last side of a chain whose sides agree, or an equation with symbols itself."""
        names: list[str] = []
        foreign = False
        if self.options.last_side:
            sides, relations = _last_side(sides, relations)
        while len(sides) > 1 and (name := name_of(sides[0]) or _undone(sides[0])) is not None:
            names.append(name)
            foreign |= all(token.kind == "word" for token in sides[0]) and name.lower() not in QUANTITIES
            sides, relations = sides[1:], relations[1:]
        values = [(_chain(side) if len(sides) == 1 else None) or self.thing(side) for side in sides]
        if foreign and any(isinstance(value.meaning, Words) or _has_symbols(value) for value in values):
            raise Unreadable("ambiguous", "a word is equated with other words or letters")
        if len(values) == 1:
            return replace(values[0], name=names[-1] if names else None)
        if all(_is_constant(value) for value in values):
            return replace(self._last_of_chain(values, relations), name=names[-1] if names else None)
        if len(values) == 2 and not names and relations == ["="]:
            if (name := name_of(sides[1])) is not None and _is_constant(values[0]):
                return replace(values[0], name=name)
            if is_label(sides[0]) and _is_constant(values[1]):
                return replace(values[1], name=spelled(sides[0]))
            if isinstance(values[0].meaning, Matrix | Bracket | Words):
                raise NotAnExpression
            difference = self.algebra.add(_ratio(values[0]), _ratio(values[1]), sign=-1)
            results = [b for a, b in (values, values[::-1]) if _is_constant(b) and _is_called(a)]
            return Value(spelled(sides[0]), Equation(difference, result=results[0] if results else None))
        raise Unreadable("ambiguous", "a chain of equations with symbols")

    def _last_of_chain(self, values: list[Value], relations: list[str]) -> Value:
        answer = values[0]
        for relation, value in zip(relations, values[1:], strict=True):
            if relation == "≈":
                near, exact = place(value, self.options), place(answer, self.options)
                if abs(near - exact) > 0.01 * abs(exact):
                    raise Unreadable("ambiguous", "an approximation that differs from the exact value")
                return answer
            if not self.options.last_side and not agree(answer, value, self.options):
                raise Unreadable("ambiguous", "a chain of equations whose sides differ")
            answer = value
        return answer

    def _inequality(self, sides: list[Sequence[Token]], relations: list[str]) -> Value:
        values = [self.thing(side) for side in sides]
        if len(values) == 3:
            if {relations[0][0], relations[1][0]} not in ({"<"}, {">"}):
                raise NotAnExpression
            low, middle, high = values if relations[0][0] == "<" else values[::-1]
            closed = [len(relation) == 2 for relation in (relations if relations[0][0] == "<" else relations[::-1])]
            return self._bounded(middle, self._between(low, middle, high, *closed))
        if len(values) != 2:
            raise NotAnExpression
        left, right, relation = values[0], values[1], relations[0]
        if relation.startswith(">"):
            left, right, relation = right, left, "<" + relation[1:]
        for bounded, bound in ((left, right), (right, left)):
            if (_is_name(bounded) or _of_absolute(bounded)) and _is_constant(bound):
                return self._bounded(bounded, self._half_line(bound, relation, below=bounded is left))
        return self._solved(self.algebra.add(_ratio(left), _ratio(right), sign=-1), relation)

    def _between(self, low: Value, middle: Value, high: Value, low_closed: bool, high_closed: bool) -> Region:
        match middle.meaning:
            case Words(text) if len(text) == 1:
                pass
            case Expression(node=Symbol() | Product() | Call(function="f" | "g" | "h") as node) if free_symbols(node):
                pass
            case _ if _of_absolute(middle):
                pass
            case _:
                raise NotAnExpression
        if not place(low, self.options) < place(high, self.options):
            raise NotAnExpression
        return Region((Piece(low, high, low_closed, high_closed),), inequality=True)

    def _bounded(self, bounded: Value, region: Region) -> Value:
        """The bounded quantity with its region. For |x|, this is x with the values of either sign."""
        letter = _of_absolute(bounded)
        return Value("", mirrored(region, self.options) if letter else region, name=letter or bounded.text)

    def _half_line(self, bound: Value, relation: str, *, below: bool) -> Region:
        place(bound, self.options)
        if relation == "≠":
            pieces = (Piece(MINUS_INFINITY, bound, False, False), Piece(bound, INFINITY, False, False))
            return Region(pieces, inequality=True)
        closed = relation == "<="
        piece = Piece(MINUS_INFINITY, bound, False, closed) if below else Piece(bound, INFINITY, closed, False)
        return Region((piece,), inequality=True)

    def _solved(self, difference: Ratio, relation: str) -> Value:
        """Solve a x + b < 0 for x. Any other inequality stays unchanged."""
        symbols = {one for one in difference.atoms if not one.prime and one.key not in CONSTANTS}
        if len(symbols) == 1 and difference.below == ONE:
            (symbol,) = symbols
            slope = difference.above.get(((symbol, 1),))
            rest = {m: c for m, c in difference.above.items() if all(one != symbol for one, _ in m)}
            if slope is not None and len(rest) + 1 == len(difference.above) and set(rest) <= {()}:
                bound = -rest.get((), Fraction(0)) / slope
                end = Value(exactly(bound), Number(bound))
                return Value("", self._half_line(end, relation, below=slope > 0), name=symbol.key)
        return Value("", Equation(difference, relation))


def _chain(tokens: Sequence[Token]) -> Value | None:
    """A date or another label of integers: 2024-01-05, 1/2/2024, 555-1234; None for 1/2, and for 5 - 3 with spaces."""
    numbers, signs = tokens[::2], {token.text for token in tokens[1::2]}
    written = spelled(tokens)
    if len(tokens) % 2 == 0 or len(signs) != 1 or not re.fullmatch(r"[0-9]+(?:[-/][0-9]+)+", written):
        return None
    padded = any(len(token.text) > 1 and token.text.startswith("0") for token in numbers)
    if any(token.gap for token in tokens[1:]) or (signs == {"/"} and len(numbers) < 3 and not padded):
        return None
    return Value(written, Words(written), computations=frozenset({"sum"} if "-" in signs else ()))


def result_of(tokens: Sequence[Token]) -> Sequence[Token]:
    """The text to the right of the last equals sign."""
    return split(tokens, ("=", "≈"))[0][-1]


def _undone(side: Sequence[Token]) -> str | None:
    """A left side that asks for a calculation whose result is on the right side, such as `\\lim f(x)`; else None."""
    return spelled(side) if any(token.text in UNDONE for token in side) else None


def _is_called(value: Value) -> bool:
    """Whether a side is a formula whose value is asked for: m + n, abc, sin x. An equation with a single letter, 2x = 5
    or x² = 25, gives the value of the letter."""
    match value.meaning:
        case Expression(node=Call(function=function)) if f"\\{function}" in FUNCTIONS:
            return True
        case Expression(node, ratio) if ratio.below == ONE and len(symbols_of(node)) > 1:
            plain = not any(one.opaque or one.prime for one in ratio.atoms)
            return plain and () not in ratio.above and all(abs(c) == 1 for c in ratio.above.values())
    return False


def _last_side(sides: list[Sequence[Token]], relations: list[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """The name and the last side of a chain. An approximation is not a side unless it is the only one."""
    named = name_of(sides[0]) is not None
    while len(sides) > 1 + named and relations[-1] == "≈":
        sides, relations = sides[:-1], relations[:-1]
    if len(sides) < 3:
        return sides, relations
    return ([sides[0], sides[-1]], relations[-1:]) if named else (sides[-1:], [])


def _of_absolute(value: Value) -> str | None:
    """The x of |x|, which is a real number; None for other values."""
    match value.meaning:
        case Expression(node=Call(function="abs", arguments=(Symbol(name),))) if name not in CONSTANTS:
            return name
    return None


def _has_symbols(value: Value) -> bool:
    return isinstance(value.meaning, Expression) and bool(free_symbols(value.meaning.node))


def _is_name(value: Value) -> bool:
    match value.meaning:
        case Words(text):
            return len(text) == 1
        case Expression(node=Symbol(name)):
            return name not in CONSTANTS
        case Expression(node=Call(function=function)):
            return function in ("f", "g", "h")
        case _:
            return False


def _is_constant(value: Value) -> bool:
    match value.meaning:
        case Expression():
            return not free_symbols(value.meaning.node)
        case Words() | Equation():
            return False
        case Colons(parts):
            return all(_is_constant(part) for part in parts)
        case _:
            return True


def _ratio(value: Value) -> Ratio:
    match value.meaning:
        case Number():
            return number(value.meaning.value)
        case Expression():
            return value.meaning.ratio
        case Words(text) if len(text) == 1:
            return atom(Atom(text))
        case _:
            raise NotAnExpression
