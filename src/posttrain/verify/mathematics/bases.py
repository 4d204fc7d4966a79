"""The basic parts of an expression: numbers, symbols, brackets, roots, functions, matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction

from posttrain.verify.mathematics.guard import MAX_DIGITS, Unreadable
from posttrain.verify.mathematics.structure import Cursor, NotAnExpression, angle_name
from posttrain.verify.mathematics.tokens import Token, words
from posttrain.verify.mathematics.values import Call, Grid, Literal, Minus, Node, Power, Quotient, Root, Symbol

FUNCTIONS = words("functions", prefix="\\")
ACCENTS = frozenset({"\\vec", "\\hat", "\\bar", "\\tilde", "\\overline", "\\overrightarrow", "\\widehat"})
_MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "Bmatrix", "array", "smallmatrix"})
_PAIRS = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "|": "|"}
_BETWEEN = {"\\lfloor": "floor", "\\lceil": "ceil", "|": "abs"}
_INVERTIBLE = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"})
_OF_RECIPROCAL = {"sec": "arccos", "csc": "arcsin"}
_NAMED_FUNCTIONS = frozenset("fgh")
COMMANDS = FUNCTIONS | ACCENTS | {"\\frac", "\\sqrt", "\\binom", "\\lfloor", "\\lceil"}
"""Commands that may begin a base, in addition to letters, numbers and brackets."""


def _inverse(name: str, arguments: tuple[Node, ...]) -> Node:
    r"""The inverse function: `\sin^{-1} x` is arcsin x and not 1/sin x."""
    if name in _OF_RECIPROCAL and len(arguments) == 1:
        return Call(_OF_RECIPROCAL[name], (Quotient(Literal(1), arguments[0]),))
    return Call(f"arc{name}", arguments)


def literal(text: str) -> Literal:
    """The number of a text such as `12`, `0.5`, `.5` or `1.5e3`."""
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_DIGITS:
        raise Unreadable("too_large", f"a number of more than {MAX_DIGITS} digits")
    whole, dot, decimals = mantissa.partition(".")
    if not dot and not exponent:
        return Literal(int(whole))
    value = Fraction(int(whole + decimals), 10 ** len(decimals)) * Fraction(10) ** int(exponent or 0)
    return Literal(value, decimal=True)


class Bases(Cursor, ABC):
    """Reads a base. A subclass with the rest of the grammar reads sums, factors and exponents."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self.bars = 0

    @abstractmethod
    def sum(self) -> Node: ...

    @abstractmethod
    def exponent(self) -> Node: ...

    @abstractmethod
    def bare_argument(self) -> Node: ...

    def base(self) -> Node:
        token = self.take()
        text = token.text
        if token.kind == "number":
            if self.peek() == "_":
                raise NotAnExpression
            return self._number(text)
        if token.kind == "letter":
            return self._symbol(text)
        if text in _PAIRS:
            return self._enclosed(text)
        if text == "\\frac":
            return Quotient(self._argument(), self._argument())
        if text == "\\sqrt":
            return self._root()
        if text == "\\binom":
            return Call("binom", (self._argument(), self._argument()))
        if text in ACCENTS:
            return self._subscripted(f"{text} {self._subscript()}")
        if text in FUNCTIONS:
            return self._function(text[1:])
        if text.startswith("\\begin{") and text[7:-1] in _MATRICES:
            return self._matrix(text[7:-1])
        raise NotAnExpression

    def _number(self, text: str) -> Literal:
        r"""A number with its repeating part, if it has one: `0.1\overline{6}` is 1/6."""
        if self.peek() == "." and self.peek(1) == "\\overline":
            self.take()
            text += "."
        if self.peek() != "\\overline" or "." not in text:
            return literal(text)
        self.take()
        period = self._subscript()
        if not period.isdigit() or not text.replace(".", "").isdigit():
            raise NotAnExpression
        decimals = len(text.partition(".")[2])
        whole = Fraction(int(text.replace(".", "")), 10**decimals)
        return Literal(whole + Fraction(int(period), 10**decimals * (10 ** len(period) - 1)))

    def _symbol(self, letter: str) -> Node:
        if letter == "…":
            raise NotAnExpression
        if letter == "∠":
            return Symbol(self._angle())
        symbol = self._subscripted(letter)
        if letter in _NAMED_FUNCTIONS and self.peek() == "(":
            return Call(symbol.name, self._arguments())
        return symbol

    def _subscripted(self, name: str) -> Symbol:
        """The symbol with its subscript and primes."""
        if self.peek() == "_":
            self.take()
            name = f"{name}_{self._subscript()}"
        while self.peek() == "'":
            name += self.take().text
        return Symbol(name)

    def _angle(self) -> str:
        """The name of an angle. ABC and CBA are the same angle, BAC is another one."""
        points: list[str] = []
        while self.kind() == "letter" or (self.kind() == "number" and not points):
            points.append(self.take().text)
        if not points:
            raise NotAnExpression
        return angle_name(points)

    def _subscript(self) -> str:
        """A subscript as written."""
        if self.peek() != "{":
            return self.take().text
        self.take()
        parts: list[str] = []
        while self.peek() != "}":
            if self.peek() == "{":
                raise NotAnExpression
            parts.append(self.take().text)
        self.take()
        return "".join(parts)

    def _arguments(self) -> tuple[Node, ...]:
        self.expect("(")
        arguments = [self.sum()]
        while self.peek() == ",":
            self.take()
            arguments.append(self.sum())
        self.expect(")")
        return tuple(arguments)

    def _enclosed(self, opening: str) -> Node:
        bars, self.bars = self.bars, int(opening == "|")
        inner = self.sum()
        self.expect(_PAIRS[opening])
        self.bars = bars
        return Call(_BETWEEN[opening], (inner,)) if opening in _BETWEEN else inner

    def _argument(self) -> Node:
        r"""The argument of a command: a group, or one digit or symbol, as in `\frac12` and `\frac1{\sqrt2}`."""
        if self.kind() == "number":
            token = self.tokens[self.position]
            if not token.text.isdigit():
                raise NotAnExpression
            if len(token.text) == 1:
                self.position += 1
            else:
                self.tokens[self.position] = Token("number", token.text[1:])
            return Literal(int(token.text[0]))
        self.descend()
        node = self.base()
        self.depth -= 1
        return node

    def _root(self) -> Node:
        degree = 2
        if self.peek() == "[":
            self.take()
            index = self.take()
            self.expect("]")
            if not index.text.isdigit() or not 2 <= int(index.text) <= 100:
                raise NotAnExpression
            degree = int(index.text)
        self.descend()
        radicand = self.base()
        self.depth -= 1
        return Root(radicand, degree)

    def _function(self, name: str) -> Node:
        base: Node | None = None
        exponent: Node | None = None
        if self.peek() == "_":
            self.take()
            base = self.base()
        if self.peek() == "^":
            self.take()
            exponent = self.exponent()
        self.descend()
        arguments = self._arguments() if self.peek() == "(" else (self.bare_argument(),)
        self.depth -= 1
        if name in _INVERTIBLE and exponent == Minus(Literal(1)):
            return _inverse(name, arguments)
        call = Call(name, arguments if base is None else (*arguments, base))
        return call if exponent is None else Power(call, exponent)

    def _matrix(self, environment: str) -> Node:
        rows: list[list[Node]] = [[]]
        ending = f"\\end{{{environment}}}"
        while self.peek() != ending:
            if self.peek() == "\\\\":
                self.take()
                rows.append([])
            elif self.peek() == "&":
                self.take()
            else:
                rows[-1].append(self.sum())
                if self.peek() not in ("&", "\\\\", ending):
                    raise NotAnExpression
        self.take()
        if not rows[-1]:
            rows.pop()
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise NotAnExpression
        return Grid(tuple(tuple(row) for row in rows))
