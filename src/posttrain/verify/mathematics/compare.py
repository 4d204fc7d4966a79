"""Compare two answers by exact arithmetic."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from posttrain.verify.mathematics.approximate import approximate, is_rounded
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.polynomials import ONE, Algebra, Atom, Polynomial, Ratio, atom, number
from posttrain.verify.mathematics.regions import equal_ends, interval, points
from posttrain.verify.mathematics.samples import counts_steps
from posttrain.verify.mathematics.structure import NotAnExpression
from posttrain.verify.mathematics.units import same_unit
from posttrain.verify.mathematics.values import (
    Based,
    Bracket,
    Colons,
    Congruence,
    Equation,
    Expression,
    Listing,
    Literal,
    Matrix,
    Meaning,
    Node,
    Number,
    Region,
    Unread,
    Value,
    Words,
    free_symbols,
)

Algebraist = Callable[[Node, Node], bool]


@dataclass(frozen=True, slots=True)
class How:
    """The settings of a comparison."""

    options: Options
    algebra: Algebraist | None = None


_SAMPLES = 3
"""Number of points at which two expressions are compared if exact arithmetic does not decide."""


_COORDINATES = (frozenset("xyz"), frozenset("uvw"))
"""Letters whose order in a point is that of the alphabet by convention. That of other letters is the question's."""


def same(gold: Value, given: Value, options: Options, algebra: Algebraist | None = None) -> bool | None:
    """Whether `given` is the gold answer; None if only symbolic algebra can decide (`symbolic.equivalent`).

    Unreadable("unevaluated") if `given` leaves a computation undone that the gold does not. `algebra` decides about
    two expressions that agree at some points but not term by term. It may take long.
    """
    if options.require_evaluated and given.computations and (undone := given.computations - gold.computations):
        raise Unreadable("unevaluated", f"a computation is left undone: {', '.join(sorted(undone))}")
    try:
        return _same(gold, given, How(options, algebra))
    except (NotAnExpression, RecursionError):
        return False


def agree(one: Value, other: Value, options: Options) -> bool:
    """Whether the sides of an equation are certainly equal."""
    return bool(_same(one, other, How(options))) and (one.unit is None or other.unit is None or one.unit == other.unit)


def _same(gold: Value, given: Value, how: How) -> bool | None:
    if isinstance(gold.meaning, Number) and isinstance(given.meaning, Number):
        equal: bool | None = _same_number(gold.meaning, given.meaning, how.options)
        if given.dozens is not None and gold.unit is None:  # the question may have asked for dozens
            equal = equal or _same_number(gold.meaning, replace(given.meaning, value=given.dozens), how.options)
    elif gold.text and gold.text == given.text:
        return True
    elif how.options.ignore_case and isinstance(gold.meaning, Words):
        written = given.meaning.text if isinstance(given.meaning, Words) else given.text
        equal = gold.meaning.text.casefold() == written.casefold()
    else:
        equal = _same_meaning(gold, given, how)
    if gold.name is not None and given.name is not None and gold.name != given.name:
        return _same_formula(gold, given)
    if gold.name is None and given.name is not None and given.name.startswith("(") and not _in_order(given.name):
        return False
    if equal is False:
        return False
    return equal if same_unit(gold.unit, given.unit, any_noun=how.options.words) else False


def _in_order(point: str) -> bool:
    """Whether a point does not turn coordinates around: (x,y) and (m,b), but not (y,x)."""
    names = [name.strip().casefold() for name in point.strip("()").split(",")]
    return names == sorted(names) or not any(set(names) <= letters for letters in _COORDINATES)


def _same_number(gold: Number, given: Number, options: Options) -> bool:
    if gold.value == given.value:
        return True
    candidates = [given.value]
    if options.percent and gold.percent != given.percent:
        candidates.append(given.value * 100 if given.percent else Fraction(given.value) / 100)
        if candidates[-1] == gold.value:
            return True
    if not gold.decimal or not (options.relative_tolerance or options.absolute_tolerance):
        return is_rounded(gold, given, options)
    allowed = max(
        Fraction(str(options.relative_tolerance)) * abs(gold.value), Fraction(str(options.absolute_tolerance))
    )
    return any(abs(candidate - gold.value) <= allowed for candidate in candidates)


def _same_meaning(gold: Value, given: Value, how: How) -> bool | None:
    if isinstance(gold.meaning, Congruence) or isinstance(given.meaning, Congruence):
        return _same_congruence(gold.meaning, given.meaning)
    match gold.meaning, given.meaning:
        case ((Number() | Expression()), (Number() | Expression())):
            return _same_expression(gold.meaning, given.meaning, how)
        case Number(), Listing(decimal=Fraction() as decimal) if how.options.decimal_comma or gold.meaning.decimal:
            return _same_number(gold.meaning, Number(decimal, decimal=True), how.options)
        case Listing(decimal=Fraction() as decimal), Number() if how.options.decimal_comma:
            return _same_number(Number(decimal, decimal=True), given.meaning, how.options)
        case Words(), Words():
            return gold.meaning == given.meaning
        case Listing(), Listing():
            return _same_listing(gold.meaning, given.meaning, how)
        case Bracket(), Bracket() if gold.meaning.opening == given.meaning.opening:
            return gold.meaning.closing == given.meaning.closing and _all_same(
                gold.meaning.items, given.meaning.items, how
            )
        case ((Region() | Bracket()), (Region() | Bracket())) if not (
            isinstance(gold.meaning, Bracket) and isinstance(given.meaning, Bracket)
        ):
            return _same_region(_as_region(gold.meaning, how.options), _as_region(given.meaning, how.options), how)
        case ((Region() | Listing(braced=True)), (Region() | Listing(braced=True))):
            return _same_region(_as_region(gold.meaning, how.options), _as_region(given.meaning, how.options), how)
        case Bracket(), Listing(braced=False) if how.options.bare_points:
            return _all_same(gold.meaning.items, given.meaning.items, how)
        case Matrix(), Matrix():
            return _same_matrix(gold.meaning, given.meaning, how)
        case Based(), Based():
            return gold.meaning == given.meaning
        case Based(), Number():
            return how.options.base and given.text == gold.meaning.digits
        case Colons(), Colons():
            return gold.meaning.half == given.meaning.half and _all_same(gold.meaning.parts, given.meaning.parts, how)
        case ((Number() | Expression()), Equation(result=Value() as result)) if gold.name is None:
            return _same(gold, result, how)
        case (Equation(), _) | (_, Equation()):
            return _same_equation(_as_equation(gold), _as_equation(given))
        case Unread(), (Unread() | Expression() | Listing() | Bracket() | Matrix()):
            return None
        case _:
            return False


def _same_expression(gold: Number | Expression, given: Number | Expression, how: How) -> bool | None:
    """Compare two expressions by their terms. If they agree only at some points, algebra has to decide."""
    if isinstance(given, Number) and is_rounded(gold, given, how.options):
        return True
    ratios = [_ratio(gold), _ratio(given)]
    if _same_terms(*ratios):
        return True
    nodes = [_node(gold), _node(given)]
    if not any(one.opaque for ratio in ratios for one in ratio.atoms) or free_symbols(nodes[0]) != free_symbols(
        nodes[1]
    ):
        return False
    for sample in range(0 if counts_steps(*nodes) else _SAMPLES):

        def point(name: str, sample: int = sample) -> complex:
            return 0.4 + zlib.crc32(f"{name} {sample}".encode()) % 9973 / 7000

        one, other = (approximate(node, point, how.options) for node in nodes)
        if one is not None and other is not None and abs(one - other) > 1e-6 * max(abs(one), abs(other)):
            return False
    return None if how.algebra is None else how.algebra(*nodes)


def _same_terms(one: Ratio, other: Ratio) -> bool:
    """Whether two ratios have the same terms. Without denominators the form is unique and needs no arithmetic."""
    if one.below == ONE and other.below == ONE:
        return one.above == other.above
    return Algebra().equal(one, other)


def _ratio(side: Number | Expression) -> Ratio:
    return number(side.value) if isinstance(side, Number) else side.ratio


def _node(side: Number | Expression) -> Node:
    return Literal(side.value) if isinstance(side, Number) else side.node


def _all_same(gold: Sequence[Value], given: Sequence[Value], how: How) -> bool | None:
    """Compare item by item. False if one differs, else None if one needs algebra."""
    if len(gold) != len(given):
        return False
    verdict: bool | None = True
    for one, other in zip(gold, given, strict=True):
        equal = _same(one, other, how)
        if equal is False:
            return False
        verdict = None if equal is None else verdict
    return verdict


def _same_listing(gold: Listing, given: Listing, how: How) -> bool | None:
    golds, givens = gold.items, given.items
    if gold.braced or given.braced:
        golds, givens = _distinct(golds, how), _distinct(givens, how)
    elif len(givens) > len(golds) and not how.options.ordered and len(_distinct(golds, how)) == len(golds):
        givens = _distinct(givens, how)  # a solution may be repeated, unless the gold repeats one itself
    if len(golds) != len(givens):
        return False
    dotted = any(item.text == "…" for item in golds)
    if dotted or (how.options.ordered and not gold.braced) or _leaves_out_which(golds, givens):
        return _all_same(golds, givens, how)
    items = () if how.options.rounded_places else (*golds, *givens)
    if items and all(isinstance(item.meaning, Number) and item.unit is None and item.name is None for item in items):
        return Counter(_exact(item) for item in golds) == Counter(_exact(item) for item in givens)
    left = list(givens)
    unsure = False
    for one in golds:
        verdicts = [_same(one, other, how) for other in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            unsure = True
        else:
            return False
    return None if unsure else True


def _leaves_out_which(golds: Sequence[Value], givens: Sequence[Value]) -> bool:
    """Whether the gold's items have different names or units, and the answer does not say which is which."""
    return any(
        len(set(expected) - {None}) > 1 and None in found
        for expected, found in (
            ([item.name for item in golds], [item.name for item in givens]),
            ([item.unit for item in golds], [item.unit for item in givens]),
        )
    )


def _exact(item: Value) -> Fraction | int:
    assert isinstance(item.meaning, Number)
    return item.meaning.value


def _distinct(items: Sequence[Value], how: How) -> tuple[Value, ...]:
    if all(isinstance(item.meaning, Number) for item in items):
        return tuple({_exact(item): item for item in items}.values())
    kept: list[Value] = []
    for item in items:
        if not any(_same(item, other, how) for other in kept):
            kept.append(item)
    return tuple(kept)


def _as_region(meaning: Meaning, options: Options) -> Region:
    match meaning:
        case Region():
            return meaning
        case Bracket():
            return interval(meaning, options)
        case Listing():
            return points(meaning, options)
        case _:
            raise NotAnExpression


def _same_region(gold: Region, given: Region, how: How) -> bool:
    if given.inequality and not gold.inequality and not how.options.inequality_as_set:
        return False
    return len(gold.pieces) == len(given.pieces) and all(
        one.low_closed == other.low_closed
        and one.high_closed == other.high_closed
        and equal_ends(one.low, other.low)
        and equal_ends(one.high, other.high)
        for one, other in zip(gold.pieces, given.pieces, strict=True)
    )


def _same_matrix(gold: Matrix, given: Matrix, how: How) -> bool | None:
    if [len(row) for row in gold.rows] != [len(row) for row in given.rows]:
        return False
    one, other = ([cell for row in matrix.rows for cell in row] for matrix in (gold, given))
    return _all_same(one, other, how)


def _same_congruence(gold: Meaning, given: Meaning) -> bool:
    if not (isinstance(gold, Congruence) and isinstance(given, Congruence)):
        return False
    apart = gold.residue - given.residue
    return gold.left == given.left and gold.modulus == given.modulus and apart % gold.modulus == 0


def _as_equation(value: Value) -> Equation:
    """An equation for a value, such as 2x + 3 - y = 0 for `y = 2x + 3`."""
    match value.meaning:
        case Equation():
            return value.meaning
        case Number() | Expression() if value.name is not None:
            return Equation(Algebra().add(_ratio(value.meaning), atom(Atom(value.name)), sign=-1))
        case _:
            raise NotAnExpression


def _same_formula(gold: Value, given: Value) -> bool:
    """Whether two formulas are the same equation, as `y = 2x` and `x = y/2` are, but `x = 5` and `y = 5` are not."""
    formulas = [value.meaning for value in (gold, given) if isinstance(value.meaning, Expression)]
    if len(formulas) < 2 or not all(free_symbols(formula.node) for formula in formulas):
        return False
    return _same_equation(_as_equation(gold), _as_equation(given))


def _same_equation(gold: Equation, given: Equation) -> bool:
    """Whether one is a multiple of the other; for an inequality, a positive multiple."""
    if gold.relation != given.relation:
        return False
    algebra = Algebra()
    left = algebra.times(gold.difference.above, given.difference.below)
    right = algebra.times(given.difference.above, gold.difference.below)
    factor = _proportion(gold.difference.above, given.difference.above) or _proportion(left, right)
    return factor is not None and (factor > 0 or gold.relation in ("=", "≠"))


def _proportion(one: Polynomial, other: Polynomial) -> Fraction | None:
    """The factor between two polynomials if one is a multiple of the other, else None."""
    if one.keys() != other.keys() or not one:
        return None
    factors = {one[monomial] / other[monomial] for monomial in one}
    return factors.pop() if len(factors) == 1 else None
