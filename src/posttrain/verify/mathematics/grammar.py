r"""The recursive-descent parser for one expression. It turns tokens into a tree and evaluates nothing.

    sum      = [sign] product { (+ | - | ± | ∓) product }
    product  = factor { [* | / | ÷] factor }
    factor   = { sign } base { ^ factor | ! | % | ° }
    base     = number | letter [_ sub] | ( sum ) | { sum } | |sum| | \frac.. | \sqrt.. | \sin.. | matrix

Two special conventions: `3\frac{1}{2}` with a proper fraction is a mixed number, and `x^10` has the exponent 10, as in
plain text. A word, or anything else that is not part of an expression, raises NotAnExpression.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from posttrain.verify.mathematics.bases import ACCENTS, COMMANDS, FUNCTIONS, Bases, literal
from posttrain.verify.mathematics.structure import NotAnExpression
from posttrain.verify.mathematics.tokens import Token
from posttrain.verify.mathematics.values import (
    Call,
    Literal,
    Minus,
    Node,
    PlusMinus,
    Power,
    Product,
    Quotient,
    Sum,
)


def expression(tokens: Sequence[Token]) -> Node:
    """The tree of an expression that consists of all the tokens."""
    reader = _Reader(tokens)
    node = reader.sum()
    if reader.position < len(reader.tokens):
        raise NotAnExpression
    return node


class _Reader(Bases):
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
        start = self.position
        factors: list[Node] = [self.factor()]
        signed = False
        while True:
            following = self.peek()
            if following in ("*", "×"):
                vector = following == "×" and self._has_vector(start)
                self.take()
                start = self.position
                factor = self.factor()
                if vector and self._has_vector(start):  # it does not commute
                    factors[-1] = Call("cross", (factors[-1], factor))
                else:
                    factors.append(factor)
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
                bracketed, start = following in ("(", "["), self.position
                factors.append(self.factor())
                signed = signed or (bracketed and isinstance(factors[-1], Literal) and isinstance(factors[-2], Literal))
            else:
                return factors[0] if len(factors) == 1 else Product(tuple(factors), signed)

    def _has_vector(self, start: int) -> bool:
        """Whether the tokens read since `start` have a symbol with an accent or in bold."""
        return any(token.bold or token.text in ACCENTS for token in self.tokens[start : self.position])

    def _continues(self) -> bool:
        """Whether the next token is a factor without a multiplication sign."""
        text, kind = self.peek(), self.kind()
        if kind == "letter":
            return text != "…"
        if kind == "number":  # `3 1/2`; the meaning of `x 2` and `7 8` is unclear
            return self.position > 0 and self.tokens[self.position - 1].kind == "number" and self.peek(1) == "/"
        if text == "|":
            return self.bars == 0
        return text in ("(", "[", "{") or text.startswith("\\begin{") or text in COMMANDS

    def _fraction_of_mixed(self, whole: Node) -> Literal | None:
        r"""The value of a mixed number, `3\frac{1}{2}` or `3 1/2`: an integer directly before a proper fraction. None
        for other tokens."""
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
                node = Call(self._factorial(), (node,))
            elif following == "%":
                self.take()
                node = _percent(node)
            else:
                self.depth -= 1
                return node

    def _factorial(self) -> str:
        """The function of one or two exclamation marks. 5!! is 5 * 3 * 1, not (5!)!."""
        marks = 0
        while self.peek() == "!":
            self.take()
            marks += 1
        if marks > 2:
            raise NotAnExpression
        return "factorial" if marks == 1 else "double factorial"

    def _raised(self, base: Node) -> Node:
        if self.peek() == "\\circ" or (self.peek() == "{" and self.peek(1) == "\\circ" and self.peek(2) == "}"):
            self.position += 1 if self.peek() == "\\circ" else 3
            return Call("degree", (base,))
        return Power(base, self.exponent())

    def exponent(self) -> Node:
        if self.peek() in ("+", "-"):
            minus = self.take().text == "-"
            exponent = self.exponent()
            return Minus(exponent) if minus else exponent
        self.descend()
        exponent = self.base()
        if self.peek() == "^":  # 9^9^9 is 9^(9^9)
            self.take()
            exponent = Power(exponent, self.exponent())
        self.depth -= 1
        return exponent

    def bare_argument(self) -> Node:
        r"""An argument without brackets, up to the next sign or function, as in `\sin 2x \cos x`."""
        factors = [self.factor()]
        while self._continues() and self.peek() not in FUNCTIONS and self.peek() not in ("(", "["):
            factors.append(self.factor())
        return factors[0] if len(factors) == 1 else Product(tuple(factors), signed=False)


def _percent(node: Node) -> Node:
    if isinstance(node, Literal):
        return Literal(Fraction(node.value) / 100, node.decimal, percent=True)
    return Quotient(node, Literal(100))
