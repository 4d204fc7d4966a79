r"""Algebra for comparisons that exact terms do not decide: high precision, or math-verify if our grammar fails.

Importing this file loads sympy (0.3 s), and a call may take long. Only workers that can be killed use it.

Two expressions that our grammar reads count as equal if they agree to 48 digits at the points of `samples.py`.
Constants must agree to more digits than an answer has characters: no decimal of an answer's length can imitate that,
and 1/2004! is not 1/2006!.

math-verify 0.9 rounds floats to 6 places, lowers the case of symbols, takes the last side of a chain and ignores dots.
Answers that could profit from this are refused before it is asked, and its positive verdicts are checked numerically.
Only its LaTeX reader is used, because its plain-text reader passes the model's text to Python's `eval`. Its timeouts
are disabled: they rely on SIGALRM in the main thread and cannot interrupt a long integer operation. The worker's parent
has a deadline instead.
"""

from __future__ import annotations

import logging
import random
import re
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from math_verify import LatexExtractionConfig, parse, verify

from posttrain.verify.mathematics import compare
from posttrain.verify.mathematics.approximate import Numbers, value_of
from posttrain.verify.mathematics.bases import ACCENTS
from posttrain.verify.mathematics.congruences import SIGNS
from posttrain.verify.mathematics.guard import MAX_CHARS, Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse as parse_exactly
from posttrain.verify.mathematics.samples import samples
from posttrain.verify.mathematics.structure import NotAnExpression, split
from posttrain.verify.mathematics.tokens import Token, tokenise
from posttrain.verify.mathematics.values import Node, Unread, symbols_of

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns about missing timeouts; our parent has a deadline
_READER = [LatexExtractionConfig()]

DIGITS_OF_CONSTANTS = 2 * MAX_CHARS + 50
DIGITS_AT_POINTS = 60
DIGITS_OF_DIFFERENCES = (150, 1_000)
"""Digits at which a difference is computed again: more of them only if the first were too few."""
POINTS = 6
"""Number of points at which a verdict of math-verify is checked, and twice the number at which ours needs values."""


def equivalent(gold: str, given: str, options: Options | None = None) -> bool:
    """Whether an answer equals the gold, both in LaTeX. It may leave the same computations undone as the gold."""
    options = options or Options()
    try:
        expected, found = parse_exactly(gold, options, gold=True), parse_exactly(given, options)
        verdict = compare.same(expected, found, options, algebra=lambda one, other: identical(one, other, options))
    except Unreadable:
        return False
    if verdict is None:
        return isinstance(expected.meaning, Unread) and _math_verify(gold, given)
    return verdict


def identical(one: Node, other: Node, options: Options) -> bool:
    """Whether two expressions have the same value wherever both have one."""
    if not symbols_of(one) | symbols_of(other):
        with mpmath.workdps(DIGITS_OF_CONSTANTS):
            return _agree(one, other, {}, options) is True
    agreed = 0
    for point, real in samples(one, other):
        with mpmath.workdps(DIGITS_AT_POINTS):
            verdict = _agree(one, other, point, options, real=real)
        if verdict is False and _differ_precisely(one, other, point, options, real=real):
            return False
        agreed += verdict is True
    return agreed >= POINTS // 2


def _agree(one: Node, other: Node, point: dict[str, Fraction], options: Options, *, real: bool = False) -> bool | None:
    """Whether two expressions agree at one point. None if one of them has no value there (`real`: no real value)."""
    values = [_value(node, point, options, real=real) for node in (one, other)]
    return None if None in values else _close(values[0], values[1], mpmath.mp.dps - 12)


def _differ_precisely(one: Node, other: Node, point: dict[str, Fraction], options: Options, *, real: bool) -> bool:
    """Whether two expressions differ at a point, however large the numbers are that they subtract from each other."""
    for least in DIGITS_OF_DIFFERENCES:
        found: list[list[Any]] = []
        for digits in (least, least + 100):
            with mpmath.workdps(digits):
                found.append([_value(node, point, options, real=real) for node in (one, other)])
        (first, second), (again, anew) = found
        if None in (first, second, again, anew):
            return False
        if _close(first, again, DIGITS_AT_POINTS) and _close(second, anew, DIGITS_AT_POINTS):
            return not _close(first, second, DIGITS_AT_POINTS - 12)
    return False


def _value(node: Node, point: dict[str, Fraction], options: Options, *, real: bool) -> Any:
    """The value at a point; None if it has none (`real`: no real one)."""
    try:
        value = value_of(node, lambda name: PRECISE.rational(point[name]), options, PRECISE)
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None
    return value if mpmath.isfinite(value) and not (real and mpmath.im(value)) else None


def _close(one: Any, other: Any, digits: int) -> bool:
    """Whether two numbers agree to this many digits."""
    scale = max(mpmath.mpf(1), abs(one), abs(other))
    return bool(abs(one - other) < scale * mpmath.mpf(10) ** -digits)


def _floor(value: Any) -> Any:
    """The floor of a real number. One that is an integer but for rounding is that integer: the floor of log2(8)."""
    if mpmath.im(value):
        raise ValueError(value)
    near = mpmath.nint(mpmath.re(value))
    return near if abs(value - near) < mpmath.mpf(10) ** (-mpmath.mp.dps // 2) else mpmath.floor(mpmath.re(value))


PRECISE = Numbers(
    rational=lambda value: mpmath.mpf(value.numerator) / value.denominator,
    constants={"π": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1)},
    functions={
        "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec,
        "csc": mpmath.csc, "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "sinh": mpmath.sinh,
        "cosh": mpmath.cosh, "tanh": mpmath.tanh, "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh,
        "arctanh": mpmath.atanh,
        "exp": mpmath.exp, "ln": mpmath.log, "lg": mpmath.log10, "abs": abs,
        "floor": _floor, "ceil": lambda x: -_floor(-x), "factorial": mpmath.factorial,
        "double factorial": mpmath.fac2, "binom": mpmath.binomial,
        "degree": mpmath.radians,
    },
)  # fmt: skip
"""Numbers at the current precision of mpmath."""


def _math_verify(gold: str, given: str) -> bool:
    """Ask math-verify if the texts cannot mislead it: same symbols in the same case, no chain, dots, decimals, mods."""
    tokens = [tokenise(text) for text in (gold, given)]
    if _symbols(tokens[0]) != _symbols(tokens[1]) or not all(map(_plain_enough, tokens)):
        return False
    read = [parse(f"$${text}$$", _READER, parsing_timeout=0) for text in (gold, given)]
    if not all(read) or isinstance(read[0][0], str) or isinstance(read[1][0], str):  # a string: nothing was understood
        return False
    return verify(read[0], read[1], timeout_seconds=0) and not _numbers_differ(read[0][0], read[1][0])


_JOINED = frozenset({"letter", "word", "number", "'", "\\circ", "}", ")", "]", "|", "!"})
"""Kinds and texts of tokens after which a number without a sign is not a factor: `2h30m`, `45^\\circ 30'`, `5C2`."""


def _symbols(tokens: list[Token]) -> set[str]:
    return {token.text for token in tokens if token.kind in ("letter", "word")}


def _plain_enough(tokens: list[Token]) -> bool:
    texts = [token.text for token in tokens]
    try:
        relations = split(tokens, ("=", "<", ">", "<=", ">=", "≈"))[1]
    except NotAnExpression:
        return False
    numbers = (place for place, token in enumerate(tokens) if place and token.kind == "number")
    joined = any(tokens[place - 1].kind in _JOINED or texts[place - 1] in _JOINED for place in numbers)
    crossed = "×" in texts and any(token.bold or token.text in ACCENTS for token in tokens)
    congruent = not SIGNS.isdisjoint(texts)
    decimals = any(token.kind == "number" and not re.fullmatch("[0-9]+", token.text) for token in tokens)
    return len(relations) <= 1 and "…" not in texts and not (decimals or congruent or joined or crossed)


def _numbers_differ(one: Any, other: Any) -> bool:
    """Whether two sympy expressions differ at some point, to 40 digits."""
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return False
    chosen = random.Random(0)
    for _ in range(POINTS):
        point = [(name, sympy.Rational(chosen.randint(3, 25), 10)) for name in one.free_symbols | other.free_symbols]
        try:
            apart = abs(sympy.N((one - other).subs(point), 50))
            if apart.is_number and apart > sympy.Float("1e-40") * (1 + abs(sympy.N(one.subs(point), 50))):
                return True
        except (TypeError, ValueError):
            return True
    return False
