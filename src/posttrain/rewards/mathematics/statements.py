r"""One statement of an answer: `x = 5`, `0 \le x < 1`, `f(x) = x^2`, `10\text{ cm}`, `(3, 1)`, `12:00`, a matrix, a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from posttrain.rewards.mathematics.compare import agree
from posttrain.rewards.mathematics.evaluate import Evaluator, free_symbols
from posttrain.rewards.mathematics.grammar import FUNCTIONS, NotAnExpression, expression
from posttrain.rewards.mathematics.guard import MAX_ITEMS, Unreadable
from posttrain.rewards.mathematics.options import Options
from posttrain.rewards.mathematics.polynomials import ONE, Algebra, Ratio, atom, number
from posttrain.rewards.mathematics.polynomials import Atom as AlgebraAtom
from posttrain.rewards.mathematics.regions import (
    INFINITY,
    MINUS_INFINITY,
    interval,
    line,
    place,
    points,
    united,
    without,
)
from posttrain.rewards.mathematics.structure import closing_of, spelled, split
from posttrain.rewards.mathematics.tokens import Token
from posttrain.rewards.mathematics.tree import Call, Grid, Literal, Minus, Node, PlusMinus, Product, Symbol, children
from posttrain.rewards.mathematics.units import spelled_unit
from posttrain.rewards.mathematics.values import (
    Based,
    Bracket,
    Colons,
    Equation,
    Expression,
    Listing,
    Matrix,
    Meaning,
    Number,
    Piece,
    Region,
    Value,
    Words,
)

_ORDER = ("<", "<=", ">", ">=", "≠")
_RELATIONS = ("=", "≈", "∈", *_ORDER)
_CURRENCIES = {"$": "dollar", "\\euro": "euro", "\\pound": "£", "\\yen": "¥", "¢": "cent"}
_PERCENT = frozenset({"percent", "pct", "percentage"})
_DEGREES = (["^", "\\circ"], ["^", "{", "\\circ", "}"])
_SETS = frozenset({"∪", "∩", "∖"})
_CONSTANTS = frozenset("πe∞i")


class Statements:
    """Reads statements; all of them pay from one budget."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.algebra = Algebra()

    def read(self, tokens: Sequence[Token]) -> Value:
        tokens = [Token("operator", "%") if t.kind == "word" and t.text in _PERCENT else t for t in tokens]
        sides, relations = split(tokens, _RELATIONS)
        if not relations:
            return self.thing(tokens)
        if not all(sides):
            raise NotAnExpression
        if relations == ["∈"]:
            return replace(self.thing(sides[1]), name=spelled(sides[0]))
        if set(relations) <= {"=", "≈"}:
            return self._equality(sides, relations)
        if set(relations) <= set(_ORDER):
            return self._inequality(sides, relations)
        raise NotAnExpression

    # -- relations

    def _equality(self, sides: list[Sequence[Token]], relations: list[str]) -> Value:
        """The value of the last side of a chain of equals, which all agree; of one equation with symbols, itself."""
        names: list[str] = []
        while len(sides) > 1 and (name := _name_of(sides[0])) is not None:
            names.append(name)
            sides, relations = sides[1:], relations[1:]
        values = [self.thing(side) for side in sides]
        if len(values) == 1:
            return replace(values[0], name=names[-1] if names else None)
        if all(_is_constant(value) for value in values):
            return replace(self._last_of_chain(values, relations), name=names[-1] if names else None)
        if len(values) == 2 and not names and relations == ["="]:
            if (name := _name_of(sides[1])) is not None and _is_constant(values[0]):
                return replace(values[0], name=name)
            if _is_label(sides[0]) and _is_constant(values[1]):
                return replace(values[1], name=spelled(sides[0]))
            if isinstance(values[0].meaning, Matrix | Bracket | Words):
                raise NotAnExpression
            return Value(spelled(sides[0]), Equation(self.algebra.add(_ratio(values[0]), _ratio(values[1]), sign=-1)))
        raise Unreadable("ambiguous", "a chain of equations with symbols")

    def _last_of_chain(self, values: list[Value], relations: list[str]) -> Value:
        answer = values[0]
        for relation, value in zip(relations, values[1:], strict=True):
            if relation == "≈":
                near, exact = place(value, self.options), place(answer, self.options)
                if abs(near - exact) > 0.01 * abs(exact):
                    raise Unreadable("ambiguous", "an approximation that is another number")
                return answer
            if not agree(answer, value, self.options):
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
            return Value("", self._between(low, middle, high, *closed), name=middle.text)
        if len(values) != 2:
            raise NotAnExpression
        left, right, relation = values[0], values[1], relations[0]
        if relation.startswith(">"):
            left, right, relation = right, left, "<" + relation[1:]
        for bounded, bound in ((left, right), (right, left)):
            if _is_name(bounded) and _is_constant(bound):
                return Value("", self._half_line(bound, relation, below=bounded is left), name=bounded.text)
        return self._solved(self.algebra.add(_ratio(left), _ratio(right), sign=-1), relation)

    def _between(self, low: Value, middle: Value, high: Value, low_closed: bool, high_closed: bool) -> Region:
        named = isinstance(middle.meaning, Expression) and isinstance(middle.meaning.node, Symbol | Call | Product)
        if (
            not named
            or not free_symbols(middle.meaning.node)
            or (  # type: ignore[union-attr]
                isinstance(middle.meaning.node, Call) and middle.meaning.node.function not in "fgh"  # type: ignore[union-attr]
            )
        ):
            raise NotAnExpression
        if not place(low, self.options) < place(high, self.options):
            raise NotAnExpression
        return Region((Piece(low, high, low_closed, high_closed),))

    def _half_line(self, bound: Value, relation: str, *, below: bool) -> Region:
        place(bound, self.options)
        if relation == "≠":
            return Region((Piece(MINUS_INFINITY, bound, False, False), Piece(bound, INFINITY, False, False)))
        closed = relation == "<="
        return Region(
            (Piece(MINUS_INFINITY, bound, False, closed) if below else Piece(bound, INFINITY, closed, False),)
        )

    def _solved(self, difference: Ratio, relation: str) -> Value:
        """a x + b < 0 solved for x; any other inequality stays as it is."""
        symbols = {one for one in difference.atoms if not one.prime and one.key not in _CONSTANTS}
        if len(symbols) == 1 and difference.below == ONE:
            (symbol,) = symbols
            slope = difference.above.get(((symbol, 1),))
            rest = {m: c for m, c in difference.above.items() if all(one != symbol for one, _ in m)}
            if slope is not None and len(rest) + 1 == len(difference.above) and set(rest) <= {()}:
                bound = -rest.get((), Fraction(0)) / slope
                end = Value(str(bound), Number(bound))
                return Value("", self._half_line(end, relation, below=slope > 0), name=symbol.key)
        return Value("", Equation(difference, relation))

    # -- things

    def thing(self, tokens: Sequence[Token]) -> Value:
        """What stands on one side of a relation."""
        while tokens and tokens[0].text == "{" and closing_of(tokens, 0) == len(tokens) - 1:
            tokens = tokens[1:-1]
        if not tokens:
            raise NotAnExpression
        written = spelled(tokens)
        if written == "…" or all(token.kind == "word" or token.text in (".", "-", "'") for token in tokens):
            return Value(written, Words(written))
        for reading in (self._based, self._set, self._colons, self._bracket):
            meaning = reading(tokens)
            if meaning is not None:
                return Value(written, meaning)
        if len(tokens) == 1 and tokens[0].text.isascii() and tokens[0].text.isupper():
            return Value(written, Words(written))
        return replace(self._quantity(tokens), text=written)

    def _based(self, tokens: Sequence[Token]) -> Based | None:
        """`101_2`, `\text{A5}_{11}`."""
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
            return None
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
        """A number or an expression, with what it is a number of."""
        unit: str | None = None
        signed = [tokens[0]] if tokens[0].text == "-" else []
        first = tokens[len(signed) :]
        if first and first[0].text in _CURRENCIES:
            unit, tokens = _CURRENCIES[first[0].text], [*signed, *first[1:]]
        elif tokens[-1].text in _CURRENCIES:
            unit, tokens = _CURRENCIES[tokens[-1].text], tokens[:-1]
        start = next((i for i, token in enumerate(tokens) if token.kind == "word"), len(tokens))
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
        return self._evaluated(node, spelled(tokens), unit)

    def _evaluated(self, node: Node, written: str, unit: str | None) -> Value:
        if _contains(node, PlusMinus):
            both = [
                self._evaluated(_choose(node, upper), f"{written}{sign}", unit)
                for upper, sign in ((True, "+"), (False, "-"))
            ]
            return Value(written, Listing(tuple(both)), computations=both[0].computations)
        evaluator = Evaluator(self.options, self.algebra)
        if _contains(node, Grid):
            return Value(written, _matrix(node, evaluator), unit, computations=frozenset(evaluator.computations))
        ratio = evaluator(node)
        value = ratio.rational
        if value is None:
            return Value(written, Expression(node, ratio), unit, computations=frozenset(evaluator.computations))
        bare = node.of if isinstance(node, Minus) else node
        decimal, percent = (bare.decimal, bare.percent) if isinstance(bare, Literal) else (False, False)
        return Value(written, Number(value, decimal, percent), unit, computations=frozenset(evaluator.computations))


_BRACKETS = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}",), "⟨": ("⟩",)}
_BASES = dict(
    zip(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        ["2", "3", "4", "5", "6", "7", "8", "9", "10"],
        strict=True,
    )
)


def _name_of(tokens: Sequence[Token]) -> str | None:
    """What an equation gives a value to: x, a_3, f(x), AB, |AB|, (p, q), a word. Of a function the name without (x)."""
    texts = [token.text for token in tokens]
    if all(token.kind == "word" for token in tokens):
        return spelled(tokens) if len(tokens) <= 4 else None
    if texts[0] == "|" and texts[-1] == "|" and len(texts) > 2:
        tokens, texts = tokens[1:-1], texts[1:-1]
    letters = [token.kind == "letter" and token.text not in _CONSTANTS and token.text != "…" for token in tokens]
    if texts[0] in ("∠", "△") and all(letters[1:]):
        return "".join(texts)
    if all(letters) and (len(tokens) == 1 or all(text.isupper() for text in texts)):
        return "".join(texts)
    if letters[0] and len(texts) > 2 and texts[1] == "_":
        end = closing_of(tokens, 2) if texts[2] == "{" else 2
        return "".join(text for text in texts if text not in "{}") if end == len(texts) - 1 else None
    inside = texts[2:-1] if letters[0] else texts[1:-1]
    opened = texts[1:2] == ["("] if letters[0] else texts[0] == "("
    if opened and texts[-1] == ")" and inside and all(t == "," or (t.isalpha() and len(t) == 1) for t in inside):
        return texts[0] if letters[0] else "".join(texts)
    return None


def _is_label(tokens: Sequence[Token]) -> bool:
    r"""Whether a left side only names a figure: `\frac{NO}{BO}`, `A:B`."""
    letters = [token.text for token in tokens if token.kind == "letter"]
    return (
        bool(letters)
        and all(letter.isupper() and letter.isascii() for letter in letters)
        and not any(token.kind == "number" or token.text in "+-*^" for token in tokens)
    )


def _is_arithmetic(tokens: Sequence[Token]) -> bool:
    return len(tokens) > 1 or (tokens[0].kind != "word" and not tokens[0].text.isupper())


def _is_name(value: Value) -> bool:
    match value.meaning:
        case Words(text):
            return len(text) == 1
        case Expression(node=Symbol(name)):
            return name not in _CONSTANTS
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
            return atom(AlgebraAtom(text))
        case _:
            raise NotAnExpression


def _contains(node: Node, kind: type[PlusMinus] | type[Grid]) -> bool:
    return isinstance(node, kind) or any(_contains(child, kind) for child in children(node))


def _choose(node: Node, upper: bool) -> Node:
    """The expression with the upper or the lower of its double signs, the same everywhere."""
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


def _matrix(node: Node, evaluator: Evaluator) -> Matrix:
    """A matrix, or a multiple of one."""
    match node:
        case Grid():
            return Matrix(tuple(tuple(_cell(cell, evaluator) for cell in row) for row in node.rows))
        case Minus():
            return _matrix(Product((Literal(-1), node.of), signed=False), evaluator)
        case Product(factors=(*scalars, Grid() as grid)) if not any(_contains(scalar, Grid) for scalar in scalars):
            scaled = tuple(tuple(Product((*scalars, cell), signed=False) for cell in row) for row in grid.rows)
            return _matrix(Grid(scaled), evaluator)
        case _:
            evaluator.computations.add("matrix")
            raise NotAnExpression


def _cell(node: Node, evaluator: Evaluator) -> Value:
    ratio = evaluator(node)
    value = ratio.rational
    return Value(ratio.key(), Expression(node, ratio) if value is None else Number(value))
