"""Whether a decimal is an exact value, rounded: what the option `rounded_places` allows."""

from __future__ import annotations

import math
from fractions import Fraction

from posttrain.verify.mathematics.approximate import approximate
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.tree import free_symbols
from posttrain.verify.mathematics.values import Expression, Number

_PRECISION = Fraction(1, 10**15)
"""Of what is calculated in floating point, relative to its size."""


def is_rounded(gold: Number | Expression, given: Number, options: Options) -> bool:
    """Whether `given` is a decimal of n >= `rounded_places` places, with as many significant digits at least, and
    |given - gold| <= 10^-n / 2. The gold must be a constant that no decimal equals: 1/3, √2, π, but not 1/8 or 7."""
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
    """Digits behind the point of a decimal; None for what no decimal equals. 1/40 = 25/1000 has three.

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
    """The real constant that a gold is, if no decimal equals it."""
    if isinstance(gold, Number):
        return Fraction(gold.value) if _places(gold.value) is None and not gold.percent else None
    found = None if free_symbols(gold.node) else approximate(gold.node, lambda name: math.nan, options)
    if found is None or not math.isfinite(found.real) or abs(found.imag) > 1e-9:
        return None
    return Fraction(found.real)
