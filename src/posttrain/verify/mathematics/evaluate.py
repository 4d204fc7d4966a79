"""The exact value of an expression: a ratio of polynomials, or a matrix of such ratios."""

from __future__ import annotations

import math
from fractions import Fraction

from posttrain.verify.mathematics.guard import MAX_BINOMIAL, MAX_FACTORIAL, Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.polynomials import (
    IMAGINARY,
    ONE,
    Algebra,
    Atom,
    Polynomial,
    Ratio,
    atom,
    exactly,
    factorised,
    number,
)
from posttrain.verify.mathematics.structure import NotAnExpression
from posttrain.verify.mathematics.values import (
    Call,
    Expression,
    Grid,
    Literal,
    Matrix,
    Minus,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Root,
    Sum,
    Symbol,
    Value,
    contains,
    free_symbols,
)

_CLOSED = frozenset({"factorial", "double factorial", "binom", "degree"})
"""Functions that a final answer may contain: 5!, 20 choose 10, an angle in degrees."""


class Evaluator:
    """Evaluates expressions, and notes in `computations` which operations they leave undone."""

    def __init__(self, options: Options, algebra: Algebra | None = None) -> None:
        self.algebra = algebra or Algebra()
        self.options = options
        self.computations: set[str] = set()

    def __call__(self, node: Node) -> Ratio:
        match node:
            case Literal():
                return number(node.value)
            case Symbol():
                return atom(IMAGINARY if node.name == "i" else Atom(node.name))
            case Sum():
                return self._sum(node)
            case Product():
                return self._product(node)
            case Quotient():
                above, below = self(node.above), self(node.below)
                if node.signed and above.rational is not None and below.rational is not None:
                    self.computations.add("quotient")
                if IMAGINARY in below.atoms:
                    self.computations.add("quotient")
                return self.algebra.divide(above, below)
            case Minus():
                inner = self(node.of)
                if isinstance(node.of, Minus) and inner.rational is not None:
                    self.computations.add("sign")
                return self.algebra.multiply(number(-1), inner)
            case Power():
                return self._power(node)
            case Root():
                return self.algebra.root(self(node.radicand), node.degree)
            case Call():
                return self._call(node)
            case _:
                raise Unreadable("wrong", "a matrix or a double sign within an expression")

    def _sum(self, node: Sum) -> Ratio:
        terms = [self(term) for term in node.terms]
        if all(term.rational is not None for term in terms):
            self.computations.add("sum")
        total = terms[0]
        for term in terms[1:]:
            total = self.algebra.add(total, term)
        return total

    def _product(self, node: Product) -> Ratio:
        factors = [self(factor) for factor in node.factors]
        if node.signed and all(factor.rational is not None for factor in factors) and not _scientific(node):
            self.computations.add("product")
        if sum(isinstance(factor, Sum) for factor in node.factors) > 1 and not free_symbols(node):
            self.computations.add("product")
        product = factors[0]
        for factor in factors[1:]:
            product = self.algebra.multiply(product, factor)
        return product

    def _power(self, node: Power) -> Ratio:
        base, exponent = self(node.base), self(node.exponent)
        if isinstance(node.base, Sum) and not free_symbols(node):
            self.computations.add("power")
        if Symbol("∞") in (node.base, node.exponent) or (not base.above and not exponent.above):
            raise Unreadable("wrong", "a power that has no value")
        if exponent.rational is not None:
            return self.algebra.power(base, exponent.rational)
        return self._general_power(base, exponent)

    def _general_power(self, base: Ratio, exponent: Ratio) -> Ratio:
        """b^(c m + d n + q) = (b^m)^c (b^n)^d b^q for monomials m, n. A rational b is factored into primes."""
        constant = base.rational
        if exponent.below != ONE or (constant is not None and constant <= 0):
            return atom(Atom(f"power {base.key()} to {exponent.key()}"))
        if constant is None or constant == 1:
            parts = [(base.key(), Fraction(1))] if constant is None else []
        else:
            parts = [(f"{p:x}", Fraction(e)) for p, e in factorised(constant.numerator)]
            parts += [(f"{p:x}", Fraction(-e)) for p, e in factorised(constant.denominator)]
        result = number(1)
        for monomial, coefficient in exponent.above.items():
            if monomial == ():
                result = self.algebra.multiply(result, self.algebra.power(base, coefficient))
                continue
            written = " ".join(f"{one.key}^{exactly(e)}" for one, e in monomial)
            kind = (
                "exponential"
                if constant is not None or base.key() == Ratio({((Atom("e"), 1),): Fraction(1)}, ONE).key()
                else "power"
            )
            for key, share in parts:
                result = self.algebra.multiply(result, atom(Atom(f"{kind} {key} to {written}"), share * coefficient))
        return result

    def _call(self, node: Call) -> Ratio:
        name, arguments = node.function, [self(argument) for argument in node.arguments]
        if name not in _CLOSED and not free_symbols(node):
            self.computations.add(_FAMILIES.get(name, name))
        numbers = [argument.rational for argument in arguments]
        if name == "degree":
            return self.algebra.multiply(arguments[0], self.algebra.divide(atom(Atom("π")), number(180)))
        if name == "factorial" and numbers[0] is not None:
            return number(_factorial(numbers[0], self.algebra))
        if name == "double factorial" and numbers[0] is not None:
            _factorial(numbers[0], self.algebra)  # for its limits
            return number(math.prod(range(int(numbers[0]), 1, -2)))
        if name == "binom" and all(n is not None for n in numbers):
            return number(_binomial(*numbers, self.algebra))  # type: ignore[arg-type]
        if name in ("floor", "ceil", "abs") and numbers[0] is not None:
            return number({"floor": math.floor, "ceil": math.ceil, "abs": abs}[name](numbers[0]))
        if name in ("log", "ln", "lg"):
            return self._logarithm(name, arguments)
        if name == "exp" and len(arguments) == 1:
            exponent, base = arguments[0], atom(Atom("e"))
            constant = exponent.rational
            return self._general_power(base, exponent) if constant is None else self.algebra.power(base, constant)
        return self._opaque(name, arguments)

    def _opaque(self, name: str, arguments: list[Ratio]) -> Ratio:
        """tan, cot, sec and csc in terms of sin and cos. Any other function becomes its own atom."""

        def of(function: str) -> Ratio:
            return atom(Atom(f"call {function}({', '.join(argument.key() for argument in arguments)})"))

        if name in _BY_SINE and len(arguments) == 1:
            above, below = _BY_SINE[name]
            return self.algebra.divide(of(above) if above else number(1), of(below))
        return of(name)

    def _logarithm(self, name: str, arguments: list[Ratio]) -> Ratio:
        """Reduce a logarithm to primes, whose logarithms are independent: ln 12 = 2 ln 2 + ln 3. The base is the second
        argument, e or 10."""
        natural = self._natural(arguments[0])
        if len(arguments) == 2:
            return self.algebra.divide(natural, self._natural(arguments[1]))
        if name == "ln" or (name == "log" and self.options.natural_log):
            return natural
        return self.algebra.divide(natural, self._natural(number(10)))

    def _natural(self, argument: Ratio) -> Ratio:
        constant = argument.rational
        if constant is None or constant <= 0:
            return atom(Atom(f"call ln({argument.key()})"))
        total: Polynomial = {}
        for side, sign in ((constant.numerator, 1), (constant.denominator, -1)):
            for prime, exponent in factorised(side):
                total[((Atom(f"logarithm {prime:x}"), 1),)] = Fraction(sign * exponent)
        return Ratio(total, ONE)


_FAMILIES = {
    name: family
    for family, names in {
        "logarithm": "log ln lg",
        "trigonometry": "sin cos tan cot sec csc arcsin arccos arctan",
    }.items()
    for name in names.split()
}
"""Families of functions. If the gold has a logarithm, the answer may have another logarithm."""
_BY_SINE = {"tan": ("sin", "cos"), "cot": ("cos", "sin"), "sec": ("", "cos"), "csc": ("", "sin")}


def _scientific(node: Product) -> bool:
    """Whether a product is a number in scientific or engineering notation: 1.5 * 10^4, 15 * 10^3."""
    if len(node.factors) != 2:
        return False
    mantissa, power = node.factors
    mantissa = mantissa.of if isinstance(mantissa, Minus) else mantissa
    if not (isinstance(mantissa, Literal) and isinstance(power, Power) and power.base == Literal(10)):
        return False
    exponent = power.exponent.of if isinstance(power.exponent, Minus) else power.exponent
    thousands = isinstance(exponent, Literal) and exponent.value % 3 == 0
    return abs(mantissa.value) <= 10 or (thousands and abs(mantissa.value) < 1000)


def _factorial(argument: Fraction, algebra: Algebra) -> int:
    if argument.denominator != 1 or argument < 0:
        raise Unreadable("wrong", "the factorial of something that is not a natural number")
    if argument > MAX_FACTORIAL:
        raise Unreadable("too_large", f"a factorial beyond {MAX_FACTORIAL}!")
    algebra.budget.pay_bits(int(argument) * max(1, int(argument).bit_length() - 1))
    return math.factorial(int(argument))


def _binomial(above: Fraction, below: Fraction, algebra: Algebra) -> int:
    if above.denominator != 1 or below.denominator != 1 or above < 0 or below < 0:
        raise Unreadable("wrong", "a binomial coefficient of something that is not a natural number")
    if above > MAX_BINOMIAL or below > MAX_BINOMIAL:
        raise Unreadable("too_large", f"a binomial coefficient beyond {MAX_BINOMIAL}")
    algebra.budget.pay_bits(8 * int(above))
    return math.comb(int(above), int(below))


Rows = tuple[tuple[Ratio, ...], ...]


def matrix_of(node: Node, evaluator: Evaluator) -> Matrix:
    """The matrix of an expression. NotAnExpression if it is not a matrix."""
    match node:
        case Grid():
            return Matrix(tuple(tuple(_cell(cell, evaluator) for cell in row) for row in node.rows))
        case Minus():
            return matrix_of(Product((Literal(-1), node.of), signed=False), evaluator)
        case Product(factors=(*scalars, Grid() as grid)) if not any(contains(scalar, Grid) for scalar in scalars):
            scaled = tuple(tuple(Product((*scalars, cell), signed=False) for cell in row) for row in grid.rows)
            return matrix_of(Grid(scaled), evaluator)
        case _:
            evaluator.computations.add("matrix")
            return Matrix(tuple(tuple(_number(entry) for entry in row) for row in _rows(node, evaluator)))


def _cell(node: Node, evaluator: Evaluator) -> Value:
    ratio = evaluator(node)
    value = ratio.rational
    decimal = isinstance(node, Literal) and node.decimal
    return Value(ratio.key(), Expression(node, ratio) if value is None else Number(value, decimal))


def _number(entry: Ratio) -> Value:
    value = entry.rational
    if value is None:
        raise NotAnExpression
    return Value(exactly(value), Number(value))


def _rows(node: Node, evaluator: Evaluator) -> Rows:
    """The entries of a sum or a product. Every operation pays from the answer's budget."""
    match node:
        case Grid():
            return tuple(tuple(evaluator(cell) for cell in row) for row in node.rows)
        case Minus():
            return _product(((number(-1),),), _rows(node.of, evaluator), evaluator)
        case Sum(terms=(first, *others)):
            total = _rows(first, evaluator)
            for term in others:
                total = _sum(total, _rows(term, evaluator), evaluator)
            return total
        case Product(factors=(first, *others)):
            product = _rows(first, evaluator)
            for factor in others:
                product = _product(product, _rows(factor, evaluator), evaluator)
            return product
        case _ if not contains(node, Grid):
            return ((evaluator(node),),)
        case _:
            raise NotAnExpression


def _sum(one: Rows, other: Rows, evaluator: Evaluator) -> Rows:
    if [len(row) for row in one] != [len(row) for row in other]:
        raise NotAnExpression
    add = evaluator.algebra.add
    return tuple(tuple(map(add, left, right)) for left, right in zip(one, other, strict=True))


def _product(one: Rows, other: Rows, evaluator: Evaluator) -> Rows:
    """The product of two matrices. A single entry multiplies a whole matrix."""
    algebra = evaluator.algebra
    for scalar, rows in ((one, other), (other, one)):
        if [len(row) for row in scalar] == [1]:
            return tuple(tuple(algebra.multiply(scalar[0][0], entry) for entry in row) for row in rows)
    columns = list(zip(*other, strict=True)) if len({len(row) for row in other}) == 1 else []
    if not columns or any(len(row) != len(other) for row in one):
        raise NotAnExpression
    return tuple(tuple(_inner(row, column, evaluator) for column in columns) for row in one)


def _inner(row: tuple[Ratio, ...], column: tuple[Ratio, ...], evaluator: Evaluator) -> Ratio:
    algebra = evaluator.algebra
    total = number(0)
    for left, right in zip(row, column, strict=True):
        total = algebra.add(total, algebra.multiply(left, right))
    return total
