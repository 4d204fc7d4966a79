"""What an expression is worth, roughly: a complex number at a given point."""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.tree import (
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

Point = Callable[[str], complex]
"""The number that a symbol stands for."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "arcsin": cmath.asin, "arccos": cmath.acos,
    "arctan": cmath.atan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh, "exp": cmath.exp, "abs": abs,
    "cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x),
    "floor": lambda x: math.floor(x.real), "ceil": lambda x: math.ceil(x.real),
    "factorial": lambda x: math.gamma(x.real + 1),
    "binom": lambda n, k: math.gamma(n.real + 1) / math.gamma(k.real + 1) / math.gamma((n - k).real + 1),
    "ln": cmath.log, "lg": cmath.log10, "degree": lambda x: x * math.pi / 180,
}  # fmt: skip


def unknown_phase(function: str, arguments: Sequence[Any]) -> Any:
    """A stand-in for a function without a definition, such as f: f(x + 1) and f(1 + x) agree, f(x) and f(y) do not."""
    return sum(
        (argument * (place + 1.25) for place, argument in enumerate(arguments)), zlib.crc32(function.encode()) % 7
    )


def approximate(node: Node, point: Point, options: Options) -> complex | None:
    """The value to about 12 digits, or None where floating point does not reach."""
    try:
        value = _approximate(node, point, options)
    except (ArithmeticError, ValueError, TypeError, KeyError, IndexError):
        return None
    return value if cmath.isfinite(value) else None


def _approximate(node: Node, point: Point, options: Options) -> complex:
    def of(child: Node) -> complex:
        return _approximate(child, point, options)

    match node:
        case Literal():
            return complex(float(node.value))
        case Symbol():
            return {"π": math.pi, "e": math.e, "i": 1j}.get(node.name) or point(node.name)
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
            radicand = of(node.radicand)
            negative = node.degree % 2 and radicand.imag == 0 and radicand.real < 0
            return -((-radicand) ** (1 / node.degree)) if negative else radicand ** (1 / node.degree)
        case Call(function="log"):
            natural = [cmath.log(of(argument)) for argument in node.arguments]
            bare = 1.0 if options.natural_log else math.log(10)
            return natural[0] / (natural[1] if len(natural) > 1 else bare)
        case Call():
            arguments = [of(argument) for argument in node.arguments]
            known = _FUNCTIONS.get(node.function)
            return known(*arguments) if known else 2 + cmath.sin(unknown_phase(node.function, arguments))
        case PlusMinus() | Grid():
            raise ValueError
