r"""One side of a statement: a quantity with its unit, a point, a set, an interval, a time, a matrix, a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posttrain.verify.mathematics.bases import FUNCTIONS
from posttrain.verify.mathematics.evaluate import Evaluator, matrix_of
from posttrain.verify.mathematics.grammar import expression
from posttrain.verify.mathematics.guard import MAX_ITEMS, Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.polynomials import Algebra
from posttrain.verify.mathematics.regions import interval, line, points, united, without
from posttrain.verify.mathematics.structure import NotAnExpression, closing_of, spelled, split
from posttrain.verify.mathematics.tokens import Token
from posttrain.verify.mathematics.units import MULTIPLES, spelled_unit
from posttrain.verify.mathematics.values import (
    Based,
    Bracket,
    Colons,
    Expression,
    Grid,
    Listing,
    Literal,
    Meaning,
    Minus,
    Node,
    Number,
    PlusMinus,
    Region,
    Symbol,
    Value,
    Words,
    contains,
)

_CURRENCIES = {"$": "dollar", "\\euro": "euro", "\\pound": "£", "\\yen": "¥", "¢": "cent"}
_DEGREES = (["^", "\\circ"], ["^", "{", "\\circ", "}"])
_SETS = frozenset({"∪", "∩", "∖"})
_BRACKETS = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}",), "⟨": ("⟩",)}
_NAMED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BASES = {name: str(base) for base, name in enumerate(_NAMED, 2)}


class Things:
    """Reads things. All of them share one budget."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.algebra = Algebra()

    def read(self, tokens: Sequence[Token]) -> Value:
        """Read a member of a set. A reader with a larger grammar overrides this."""
        return self.thing(tokens)

    def thing(self, tokens: Sequence[Token]) -> Value:
        """Read one side of a relation."""
        while tokens and tokens[0].text == "{" and closing_of(tokens, 0) == len(tokens) - 1:
            tokens = tokens[1:-1]
        if not tokens:
            raise NotAnExpression
        written = spelled(tokens)
        if written == "…" or all(token.kind == "word" or token.text in (".", "-", "'") for token in tokens):
            return Value(written, Words(written.rstrip(".")))
        for reading in (self._based, self._set, self._colons, self._bracket):
            meaning = reading(tokens)
            if meaning is not None:
                return Value(written, meaning)
        if all(token.kind == "letter" and token.text.isascii() and token.text.isupper() for token in tokens):
            return Value(written, Words(written))  # a choice, or points in an order: CAB is not a product
        return replace(self._quantity(tokens), text=written)

    def _based(self, tokens: Sequence[Token]) -> Based | None:
        """Read a number with its base, such as `101_2` or `\\text{A5}_{11}`; None for other tokens."""
        digits, marks = split(tokens, ("_",))
        if len(marks) != 1 or not digits[0] or not digits[1]:
            return None
        sign = "-" if digits[0][0].text == "-" and len(digits[0]) > 1 else ""
        digits[0] = digits[0][len(sign) :]
        written = "".join(token.text for token in digits[0])
        base = "".join(token.text for token in digits[1] if token.text not in ("{", "}"))
        if not written[0].isdigit() and digits[0][0].kind != "word":
            return None
        if (
            written.isascii()
            and written.isalnum()
            and written.upper() == written
            and (base.isdigit() or base.isalpha())
        ):
            return Based(sign + written, _BASES.get(base, base))
        return None

    def _set(self, tokens: Sequence[Token]) -> Meaning | None:
        if tokens[0].text in ("\\varnothing", "\\mathbb{R}") and len(tokens) == 1:
            return line() if tokens[0].text == "\\mathbb{R}" else Listing((), braced=True)
        sides, signs = split(tokens, _SETS)
        if not signs:
            return None
        if not all(sides) or len(set(signs)) > 1 or signs[0] == "∩":
            raise NotAnExpression
        regions = [self._region(side) for side in sides]
        if signs[0] == "∪":
            return united(regions, self.options)
        return without(regions[0], united(regions[1:], self.options), self.options)

    def _region(self, tokens: Sequence[Token]) -> Region:
        meaning = self.thing(tokens).meaning
        match meaning:
            case Region():
                return meaning
            case Bracket():
                return interval(meaning, self.options)
            case Listing(braced=True):
                return points(meaning, self.options)
            case _:
                raise NotAnExpression

    def _colons(self, tokens: Sequence[Token]) -> Colons | None:
        half = ""
        letters = "".join(token.text for token in tokens[-4:] if token.kind == "word" or token.text == ".").lower()
        sides, signs = split(tokens, (":",))
        if not signs:
            return None
        for suffix in ("am", "pm"):
            if letters.replace(".", "").replace(" ", "") == suffix:
                half = suffix
                sides[-1] = [token for token in sides[-1] if token.kind != "word" and token.text != "."]
        if not all(sides):
            raise NotAnExpression
        return Colons(tuple(self.thing(side) for side in sides), half)

    def _bracket(self, tokens: Sequence[Token]) -> Meaning | None:
        opening, closing = tokens[0].text, tokens[-1].text
        if opening not in _BRACKETS or closing not in _BRACKETS[opening] or closing_of(tokens, 0) != len(tokens) - 1:
            return None
        if len(tokens) == 2:
            return Listing((), braced=True) if opening == "\\{" else None
        parts, _ = split(tokens[1:-1], (",", ";"))
        if len(parts) == 1 and opening != "\\{":
            if opening == "(":
                inner = self.thing(parts[0]) if not _is_arithmetic(parts[0]) else None
                return inner.meaning if inner is not None else None
            if parts[0][0].text.startswith("\\begin{"):
                return self.thing(parts[0]).meaning
            raise NotAnExpression  # a list or a vector of one item: no question asks for it
        if not all(parts):
            raise NotAnExpression
        if len(parts) > MAX_ITEMS:
            raise Unreadable("too_large", f"more than {MAX_ITEMS} items")
        items: list[Value] = []
        for part in parts:
            item = self.read(part) if opening == "\\{" else self.thing(part)
            items += item.meaning.items if isinstance(item.meaning, Listing) and not item.meaning.braced else [item]
        return Listing(tuple(items), braced=True) if opening == "\\{" else Bracket(opening, tuple(items), closing)

    def _quantity(self, tokens: Sequence[Token]) -> Value:
        """Read a number or an expression with its unit or counted noun."""
        unit: str | None = None
        signed = [tokens[0]] if tokens[0].text == "-" else []
        first = tokens[len(signed) :]
        if first and first[0].text in _CURRENCIES:
            unit, tokens = _CURRENCIES[first[0].text], [*signed, *first[1:]]
        elif tokens[-1].text in _CURRENCIES:
            unit, tokens = _CURRENCIES[tokens[-1].text], tokens[:-1]
        start = next((i for i, token in enumerate(tokens) if token.kind == "word"), len(tokens))
        multiple = MULTIPLES.get(tokens[start].text.lower().removesuffix("s"), 1) if 0 < start < len(tokens) else 1
        if multiple > 1:
            tokens = [*tokens[:start], *tokens[start + 1 :]]
        if start < len(tokens):
            worded = spelled_unit(tokens[start:])
            if worded is None or start == 0:
                raise NotAnExpression
            unit, tokens = worded if unit is None or worded == unit else f"{unit} {worded}", tokens[:start]
        ending = next((end for end in _DEGREES if [token.text for token in tokens[-len(end) :]] == end), None)
        written = [token.text for token in tokens]
        if ending and len(tokens) > len(ending) and written.count("\\circ") == 1 and FUNCTIONS.isdisjoint(written):
            unit, tokens = "degree" if unit is None else f"degree {unit}", tokens[: -len(ending)]
        if not tokens:
            raise NotAnExpression
        node = expression(tokens)
        if multiple > 1:
            if not isinstance(node, Literal) or node.percent:
                raise NotAnExpression
            dozens = node.value if multiple == MULTIPLES["dozen"] else None
            node = Literal(node.value * multiple, node.decimal)
            return replace(self._evaluated(node, spelled(tokens), unit), dozens=dozens)
        return self._evaluated(node, spelled(tokens), unit)

    def _evaluated(self, node: Node, written: str, unit: str | None) -> Value:
        if contains(node, PlusMinus):
            both = [
                self._evaluated(_choose(node, upper), f"{written}{sign}", unit)
                for upper, sign in ((True, "+"), (False, "-"))
            ]
            return Value(written, Listing(tuple(both)), computations=both[0].computations)
        evaluator = Evaluator(self.options, self.algebra)
        if contains(node, Grid):
            return Value(written, matrix_of(node, evaluator), unit, computations=frozenset(evaluator.computations))
        ratio = evaluator(node)
        value = ratio.rational
        if value is None:
            return Value(written, Expression(node, ratio), unit, computations=frozenset(evaluator.computations))
        bare = node.of if isinstance(node, Minus) else node
        decimal, percent = (bare.decimal, bare.percent) if isinstance(bare, Literal) else (False, False)
        return Value(written, Number(value, decimal, percent), unit, computations=frozenset(evaluator.computations))


def _is_arithmetic(tokens: Sequence[Token]) -> bool:
    return len(tokens) > 1 or (tokens[0].kind != "word" and not tokens[0].text.isupper())


def _choose(node: Node, upper: bool) -> Node:
    """The expression with all its double signs replaced by the upper or by the lower sign."""
    match node:
        case PlusMinus():
            inner = _choose(node.of, upper)
            return inner if upper != node.flipped else Minus(inner)
        case Literal() | Symbol() | Grid():
            return node
        case _:
            changed = {}
            for name in node.__dataclass_fields__:
                part = getattr(node, name)
                if isinstance(part, tuple):
                    changed[name] = tuple(_choose(child, upper) for child in part)
                elif not isinstance(part, str | bool | int):
                    changed[name] = _choose(part, upper)
            return replace(node, **changed)
