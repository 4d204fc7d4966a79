"""The numerical value of an expression at a given point, and the test whether a decimal is a rounded exact value."""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.values import (
    Call,
    Expression,
    Literal,
    Minus,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Root,
    Sum,
    Symbol,
    free_symbols,
)

Point = Callable[[str], Any]
"""Function that returns the number of a symbol."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The arithmetic for a calculation."""

    rational: Callable[[Fraction | int], Any]
    constants: Mapping[str, Any]
    """The values of π, e and i."""
    functions: Mapping[str, Callable[..., Any]]


ROUGH = Numbers(
    rational=lambda value: complex(float(value)),
    constants={"π": math.pi, "e": math.e, "i": 1j},
    functions={
        "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "arcsin": cmath.asin, "arccos": cmath.acos,
        "arctan": cmath.atan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh, "exp": cmath.exp, "abs": abs,
        "arcsinh": cmath.asinh, "arccosh": cmath.acosh, "arctanh": cmath.atanh,
        "cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x),
        "floor": lambda x: math.floor(x.real), "ceil": lambda x: math.ceil(x.real),
        "factorial": lambda x: math.gamma(x.real + 1),
        "double factorial": lambda x: math.prod(range(int(x.real), 1, -2)) if x == int(x.real) else math.nan,
        "binom": lambda n, k: math.gamma(n.real + 1) / math.gamma(k.real + 1) / math.gamma((n - k).real + 1),
        "ln": cmath.log, "lg": cmath.log10, "degree": lambda x: x * math.pi / 180,
    },
)  # fmt: skip
"""Complex numbers in floating point."""


def approximate(node: Node, point: Point, options: Options) -> complex | None:
    """The value to about 12 digits, or None if floating point cannot compute it."""
    try:
        value = value_of(node, point, options, ROUGH)
    except (ArithmeticError, ValueError, TypeError, KeyError, IndexError):
        return None
    return value if cmath.isfinite(value) else None


def value_of(node: Node, point: Point, options: Options, numbers: Numbers) -> Any:
    """The value of an expression. ValueError for a matrix or a double sign, ArithmeticError if it has no value."""

    def of(child: Node) -> Any:
        return value_of(child, point, options, numbers)

    match node:
        case Literal():
            return numbers.rational(node.value)
        case Symbol():
            return numbers.constants[node.name] if node.name in numbers.constants else point(node.name)
        case Sum():
            return sum(of(term) for term in node.terms)
        case Product():
            return math.prod(of(factor) for factor in node.factors)
        case Quotient():
            return of(node.above) / of(node.below)
        case Minus():
            return -of(node.of)
        case Power():
            return of(node.base) ** of(node.exponent)
        case Root():
            radicand, share = of(node.radicand), numbers.rational(Fraction(1, node.degree))
            negative = node.degree % 2 and radicand.imag == 0 and radicand.real < 0
            return -((-radicand) ** share) if negative else radicand**share
        case Call(function="log"):
            logarithm, (of_what, *base) = numbers.functions["ln"], [of(argument) for argument in node.arguments]
            usual = 1 if options.natural_log else logarithm(numbers.rational(10))
            return logarithm(of_what) / (logarithm(base[0]) if base else usual)
        case Call():
            arguments = [of(argument) for argument in node.arguments]
            known = numbers.functions.get(node.function)
            return known(*arguments) if known else 2 + numbers.functions["sin"](_phase(node.function, arguments))
        case _:
            raise ValueError(node)


def _phase(function: str, arguments: Sequence[Any]) -> Any:
    """A substitute for an undefined function such as f: f(x + 1) and f(1 + x) agree, f(x) and f(y) do not."""
    return sum(
        (argument * (place + 1.25) for place, argument in enumerate(arguments)), zlib.crc32(function.encode()) % 7
    )


_PRECISION = Fraction(1, 10**15)
"""Relative precision of a floating-point result."""


def is_rounded(gold: Number | Expression, given: Number, options: Options) -> bool:
    """Whether `given` is a decimal with n >= `rounded_places` places and at least `rounded_places` significant digits,
    and |given - gold| <= 10^-n / 2. The gold must be a constant that no decimal equals: 1/3, √2, π, not 1/8 or 7."""
    if not (options.rounded_places and given.decimal) or given.percent:
        return False
    places = _places(given.value)
    if places is None or places < options.rounded_places:
        return False
    if abs(given.value) * 10**places < 10 ** (options.rounded_places - 1):
        return False
    exact = _exact(gold, options)
    slack = 0 if exact is None or isinstance(gold, Number) else _PRECISION * abs(exact)
    return exact is not None and abs(given.value - exact) <= Fraction(1, 2 * 10**places) + slack


def _places(value: Fraction | int) -> int | None:
    """Number of decimal places of a value; None if no decimal equals it. 1/40 = 25/1000 has three.

    >>> _places(Fraction(1, 40)), _places(7), _places(Fraction(1, 3))
    (3, 0, None)
    """
    rest, powers = value.denominator, [0, 0]
    for at, prime in enumerate((2, 5)):
        while rest % prime == 0:
            rest //= prime
            powers[at] += 1
    return max(powers) if rest == 1 else None


def _exact(gold: Number | Expression, options: Options) -> Fraction | None:
    """The value of a gold that is a real constant which no decimal equals; else None."""
    if isinstance(gold, Number):
        return Fraction(gold.value) if _places(gold.value) is None and not gold.percent else None
    found = None if free_symbols(gold.node) else approximate(gold.node, lambda name: math.nan, options)
    if found is None or not math.isfinite(found.real) or abs(found.imag) > 1e-9:
        return None
    return Fraction(found.real)
