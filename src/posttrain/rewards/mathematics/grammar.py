r"""The recursive-descent reader of one expression: tokens in, tree out. It works nothing out.

    sum      = [sign] product { (+ | - | ± | ∓) product }
    product  = factor { [* | / | ÷] factor }
    factor   = { sign } base { ^ factor | ! | % | ° }
    base     = number | letter [_ sub] | ( sum ) | { sum } | |sum| | \frac.. | \sqrt.. | \sin.. | matrix

Two conventions of its own: `3\frac{1}{2}` with a proper fraction is a mixed number, and `x^10` means what it says in
plain text. A word, or anything else that is no part of an expression, ends the reading with NotAnExpression.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from posttrain.rewards.mathematics.cursor import Cursor, NotAnExpression
from posttrain.rewards.mathematics.guard import MAX_DIGITS, Unreadable
from posttrain.rewards.mathematics.tokens import Token
from posttrain.rewards.mathematics.tree import (
    Call,
    Grid,
    Literal,
    Minus,
    Node,
    PlusMinus,
    Power,
    Product,
    Quotient,
    Root,
    Sum,
    Symbol,
)

FUNCTIONS = frozenset(
    f"\\{name}"
    for name in [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "log",
        "ln",
        "lg",
        "exp",
        "gcd",
        "lcm",
        "max",
        "min",
        "arg",
        "Re",
        "Im",
    ]
)
_ACCENTS = frozenset({"\\vec", "\\hat", "\\bar", "\\tilde", "\\overline", "\\overrightarrow", "\\widehat"})
_MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "Bmatrix", "array", "smallmatrix"})
_PAIRS = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "|": "|"}
_BETWEEN = {"\\lfloor": "floor", "\\lceil": "ceil", "|": "abs"}
_NAMED_FUNCTIONS = frozenset("fgh")


def expression(tokens: Sequence[Token]) -> Node:
    """The tree of all of the tokens."""
    reader = _Reader(tokens)
    node = reader.sum()
    if reader.position < len(reader.tokens):
        raise NotAnExpression
    return node


def literal(text: str) -> Literal:
    """`12`, `0.5`, `.5`, `1.5e3`."""
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_DIGITS:
        raise Unreadable("too_large", f"a number of more than {MAX_DIGITS} digits")
    whole, dot, decimals = mantissa.partition(".")
    if not dot and not exponent:
        return Literal(int(whole))
    value = Fraction(int(whole + decimals), 10 ** len(decimals)) * Fraction(10) ** int(exponent or 0)
    return Literal(value, decimal=True)


class _Reader(Cursor):
    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self.bars = 0

    def sum(self) -> Node:
        self.descend()
        terms = [self.signed_product()]
        while self.peek() in ("+", "-", "±", "∓"):
            terms.append(self.signed_product())
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def signed_product(self) -> Node:
        if self.peek() in ("+", "-", "±", "∓"):
            sign = self.take().text
            product = self.product()
            if sign == "+":
                return product
            return Minus(product) if sign == "-" else PlusMinus(product, flipped=sign == "∓")
        return self.product()

    def product(self) -> Node:
        factors: list[Node] = [self.factor()]
        signed = False
        while True:
            following = self.peek()
            if following in ("*", "×"):
                self.take()
                factors.append(self.factor())
                signed = True
            elif following in ("/", "÷"):
                self.take()
                above = factors[0] if len(factors) == 1 else Product(tuple(factors), signed)
                factors = [Quotient(above, self.factor(), signed=following == "÷")]
                signed = False
            elif self._continues():
                fraction = self._fraction_of_mixed(factors[-1])
                if fraction is not None:
                    factors[-1] = fraction
                    continue
                bracketed = following in ("(", "[")
                factors.append(self.factor())
                signed = signed or (bracketed and isinstance(factors[-1], Literal) and isinstance(factors[-2], Literal))
            else:
                return factors[0] if len(factors) == 1 else Product(tuple(factors), signed)

    def _continues(self) -> bool:
        """Whether the next token is a factor without a multiplication sign."""
        text, kind = self.peek(), self.kind()
        if kind == "letter":
            return text != "…"
        if kind == "number":  # `3 1/2`; in `x 2` and `7 8` nobody can tell what is meant
            return self.position > 0 and self.tokens[self.position - 1].kind == "number" and self.peek(1) == "/"
        if text == "|":
            return self.bars == 0
        return text in ("(", "[", "{") or text.startswith("\\begin{") or text in _COMMANDS

    def _fraction_of_mixed(self, whole: Node) -> Literal | None:
        r"""`3\frac{1}{2}` and `3 1/2`: a whole number directly before a proper fraction of whole numbers."""
        before = self.tokens[self.position - 1]
        if not isinstance(whole, Literal) or whole.decimal or whole.percent or before.kind != "number":
            return None
        start = self.position
        if self.peek() == "\\frac":
            part = self.base()
        elif self.kind() == "number":
            above = literal(self.take().text)
            self.expect("/")
            part = Quotient(above, self.base())
        else:
            return None
        if isinstance(part, Quotient) and isinstance(part.above, Literal) and isinstance(part.below, Literal):
            above, below = part.above.value, part.below.value
            if 0 < above < below and isinstance(above, int) and isinstance(below, int) and self.peek() != "^":
                return Literal(whole.value + Fraction(above, below))
        if self.tokens[start].kind == "number":
            raise NotAnExpression
        self.position = start
        return None

    def factor(self) -> Node:
        self.descend()
        if self.peek() in ("+", "-"):
            minus = self.take().text == "-"
            inner = self.factor()
            self.depth -= 1
            return Minus(inner) if minus else inner
        node = self.base()
        while True:
            following = self.peek()
            if following == "^":
                self.take()
                node = self._raised(node)
            elif following == "!":
                self.take()
                node = Call("factorial", (node,))
            elif following == "%":
                self.take()
                node = _percent(node)
            else:
                self.depth -= 1
                return node

    def _raised(self, base: Node) -> Node:
        if self.peek() == "\\circ" or (self.peek() == "{" and self.peek(1) == "\\circ" and self.peek(2) == "}"):
            self.position += 1 if self.peek() == "\\circ" else 3
            return Call("degree", (base,))
        return Power(base, self._exponent())

    def _exponent(self) -> Node:
        if self.peek() in ("+", "-"):
            minus = self.take().text == "-"
            exponent = self._exponent()
            return Minus(exponent) if minus else exponent
        self.descend()
        exponent = self.base()
        if self.peek() == "^":  # 9^9^9 is 9^(9^9)
            self.take()
            exponent = Power(exponent, self._exponent())
        self.depth -= 1
        return exponent

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
        if text in _ACCENTS:
            return Symbol(f"{text} {self._subscript()}")
        if text in FUNCTIONS:
            return self._function(text[1:])
        if text.startswith("\\begin{") and text[7:-1] in _MATRICES:
            return self._matrix(text[7:-1])
        raise NotAnExpression

    def _number(self, text: str) -> Literal:
        r"""A number with its period, if it has one: `0.1\overline{6}` is 1/6."""
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
        name = letter
        if self.peek() == "_":
            self.take()
            name = f"{letter}_{self._subscript()}"
        while self.peek() == "'":
            name += self.take().text
        if letter in _NAMED_FUNCTIONS and self.peek() == "(":
            return Call(name, self._arguments())
        return Symbol(name)

    def _subscript(self) -> str:
        """As it is written."""
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
        r"""Of a command: a group, or one digit or symbol, as in `\frac12` and `\frac1{\sqrt2}`."""
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
            exponent = self._exponent()
        self.descend()
        arguments = self._arguments() if self.peek() == "(" else (self._bare_argument(),)
        self.depth -= 1
        call = Call(name, arguments if base is None else (*arguments, base))
        return call if exponent is None else Power(call, exponent)

    def _bare_argument(self) -> Node:
        r"""`\sin 2x \cos x`: the argument goes up to the next sign or function."""
        factors = [self.factor()]
        while self._continues() and self.peek() not in FUNCTIONS and self.peek() not in ("(", "["):
            factors.append(self.factor())
        return factors[0] if len(factors) == 1 else Product(tuple(factors), signed=False)

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


_COMMANDS = FUNCTIONS | _ACCENTS | {"\\frac", "\\sqrt", "\\binom", "\\lfloor", "\\lceil"}


def _percent(node: Node) -> Node:
    if isinstance(node, Literal):
        return Literal(Fraction(node.value) / 100, node.decimal, percent=True)
    return Quotient(node, Literal(100))
