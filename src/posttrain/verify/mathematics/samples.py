"""The points at which two expressions are compared.

Absolute values and roots may agree with another formula on one side of a number only: |x - 30| is 30 - x up to 30. The
points therefore reach from below one to a million, with both signs, or to 100 if a letter is in an exponent. Floors and
ceilings change at single numbers only: their points are consecutive, from zero on and around every number written.
Double factorials have such formulas at integers only: (2n)!! is 2^n n!.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from posttrain.verify.mathematics.values import Call, Literal, Node, Power, children, free_symbols, symbols_of

REACHES = (Fraction(5, 2), 10, 100, 1_000, 1_000_000)
"""Largest absolute values of the points."""
REACH_OF_EXPONENTIALS = 100
"""The largest one if a letter is in an exponent: e^1000000 has no digit left for what is added to it."""
PER_REACH = 6
CONSECUTIVE = 150
"""The number of consecutive integers from zero on at which steps are compared."""
AROUND = 12
"""The distance up to which steps are compared around every number of the formulas."""
LARGEST = 10**9
INTEGERS = frozenset("jkmnN")
"""Letters that stand for integers in formulas with floors, ceilings and factorials."""

_STEPS = frozenset({"floor", "ceil"})
_FACTORIALS = frozenset({"factorial", "double factorial"})

_EXPONENTIALS = frozenset({"exp", "sinh", "cosh", "tanh", "factorial", "double factorial", "binom"})

Sample = tuple[dict[str, Fraction], bool]
"""A point, and whether only real values count at it."""


def counts_steps(one: Node, other: Node) -> bool:
    """Whether one of two expressions has a floor, ceiling or factorial, and all their letters stand for integers."""
    letters = {name.partition("_")[0] for name in symbols_of(one) | symbols_of(other)}
    return bool(letters) and letters <= INTEGERS and any(_has(node, _STEPS | _FACTORIALS) for node in (one, other))


def samples(first: Node, second: Node) -> Iterator[Sample]:
    """The points for two expressions: numbers of every size, and where a floor or a ceiling changes."""
    names = sorted(symbols_of(first) | symbols_of(second))
    chosen = random.Random(0)
    whole = counts_steps(first, second)
    exponential = _is_exponential(first) or _is_exponential(second)
    for reach in REACHES[: REACHES.index(REACH_OF_EXPONENTIALS) + 1] if exponential else REACHES:
        for low, real in ((Fraction(1, 3), False), (-reach, True)):
            for _ in range(PER_REACH):
                point = {name: _between(chosen, low, reach) for name in names}
                yield ({name: Fraction(round(place)) for name, place in point.items()} if whole else point), real
    if _has(first, _STEPS) or _has(second, _STEPS):
        places = _places_of_steps(first, second, whole=whole)
        for name in names:
            for place in places:
                yield {**{other: chosen.choice(places) for other in names}, name: place}, True


def _between(chosen: random.Random, low: Fraction | int, high: Fraction | int) -> Fraction:
    return low + (high - low) * Fraction(chosen.randint(0, 10**9), 10**9)


def _places_of_steps(one: Node, other: Node, *, whole: bool) -> list[Fraction]:
    """Integers from zero on and around the numbers of two expressions, and halves unless all letters are integers."""
    near = {round(number) for number in _numbers(one) | _numbers(other)}
    found = {Fraction(place) for place in range(CONSECUTIVE)}
    found |= {Fraction(sign * number + step) for number in near for sign in (1, -1) for step in range(-AROUND, AROUND)}
    return sorted(found if whole else found | {place + Fraction(1, 2) for place in found})


def _numbers(node: Node) -> set[Fraction]:
    own = {Fraction(node.value)} if isinstance(node, Literal) and abs(node.value) < LARGEST else set()
    return own.union(*map(_numbers, children(node)))


def _is_exponential(node: Node) -> bool:
    raised = isinstance(node, Power) and free_symbols(node.exponent)
    grows = isinstance(node, Call) and node.function in _EXPONENTIALS
    return raised or grows or any(map(_is_exponential, children(node)))


def _has(node: Node, functions: frozenset[str]) -> bool:
    return (isinstance(node, Call) and node.function in functions) or any(
        _has(inner, functions) for inner in children(node)
    )
