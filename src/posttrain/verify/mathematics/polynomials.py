r"""Exact algebra without sympy: quotients of polynomials over the rationals, in any atoms.

Atoms are symbols (x, π, e), prime numbers to a fractional power, i, roots of sums, and unevaluated functions. Products
of fractional powers of different primes are linearly independent over the rationals (Besicovitch 1940). Two sums of
surds are therefore equal exactly if their terms are, and there is no rounding anywhere.

    a/b = c/d   exactly when   a d - c b  has no terms

π and e count as free symbols. That is sound for "equal". For "different" it is a conjecture that is widely believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, isqrt, lcm

from posttrain.verify.mathematics.guard import MAX_EXPONENT, MAX_TERMS, Budget, Unreadable

SMALL_PRIMES = 2_000
"""Limit of the trial division that factors radicands. The remaining factor counts as prime."""


class Atom:
    """A factor of a monomial. Atoms with the same key are equal."""

    __slots__ = ("key", "prime", "radicand")

    def __init__(self, key: str, *, prime: int = 0, radicand: Polynomial | None = None) -> None:
        self.key = key
        self.prime = prime
        self.radicand = radicand

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def opaque(self) -> bool:
        """Whether the atom may satisfy relations that the polynomials do not know, such as sin² + cos² = 1."""
        return self.key.startswith(("root ", "call ", "power "))


Exponent = Fraction | int
Monomial = tuple[tuple[Atom, Exponent], ...]
Polynomial = dict[Monomial, Fraction]

IMAGINARY = Atom("i")
ONE: Polynomial = {(): Fraction(1)}


@dataclass(frozen=True, slots=True)
class Ratio:
    """One polynomial divided by another that is not zero."""

    above: Polynomial
    below: Polynomial

    @property
    def rational(self) -> Fraction | None:
        """The value if the ratio is a rational number, else None."""
        if not self.above:
            return Fraction(0)
        constant = len(self.above) == 1 and () in self.above and self.below == ONE
        return self.above[()] if constant else None

    @property
    def atoms(self) -> set[Atom]:
        return {atom for part in (self.above, self.below) for monomial in part for atom, _ in monomial}

    def key(self) -> str:
        """A key that is the same for the same terms. Ratios with different keys may still be equal."""
        below = "" if self.below == ONE else f"/({key_of(self.below)})"
        return f"{key_of(self.above)}{below}"


def number(value: Fraction | int) -> Ratio:
    return Ratio({(): Fraction(value)} if value else {}, ONE)


def atom(the_atom: Atom, exponent: Exponent = 1) -> Ratio:
    return Ratio({((the_atom, exponent),): Fraction(1)}, ONE)


def exactly(value: Exponent) -> str:
    """The number in hexadecimal, because Python refuses to print more than 4,300 decimal digits."""
    return f"{value.numerator:x}/{value.denominator:x}"


def key_of(polynomial: Polynomial) -> str:
    terms = [
        " ".join([exactly(c), *(f"[{a.key}]^{exactly(e)}" for a, e in monomial)]) for monomial, c in polynomial.items()
    ]
    return " + ".join(sorted(terms))


class Algebra:
    """The operations on ratios. All of them share one budget."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()

    def equal(self, one: Ratio, other: Ratio) -> bool:
        return not self.add(
            Ratio(self.times(one.above, other.below), ONE), Ratio(self.times(other.above, one.below), ONE), sign=-1
        ).above

    def add(self, one: Ratio, other: Ratio, *, sign: int = 1) -> Ratio:
        if one.below == other.below:
            return self._ratio(_added(one.above, other.above, sign), one.below)
        above = _added(self.times(one.above, other.below), self.times(other.above, one.below), sign)
        return self._ratio(above, self.times(one.below, other.below))

    def multiply(self, one: Ratio, other: Ratio) -> Ratio:
        return self._ratio(self.times(one.above, other.above), self.times(one.below, other.below))

    def divide(self, one: Ratio, other: Ratio) -> Ratio:
        if not other.above:
            raise Unreadable("wrong", "a division by zero")
        return self._ratio(self.times(one.above, other.below), self.times(one.below, other.above))

    def times(self, one: Polynomial, other: Polynomial) -> Polynomial:
        if one == ONE or other == ONE:
            return other if one == ONE else one
        self.budget.pay_work(len(one) * len(other))
        product: Polynomial = {}
        for monomial, coefficient in one.items():
            for other_monomial, other_coefficient in other.items():
                self.budget.pay_work((len(monomial) + len(other_monomial)) // 2)
                self.budget.pay_bits((_bits(coefficient) + _bits(other_coefficient)) // 8)
                self._collect(product, coefficient * other_coefficient, (*monomial, *other_monomial))
        if len(product) > MAX_TERMS:
            raise Unreadable("too_large", f"multiplied out it has more than {MAX_TERMS} terms")
        return product

    def power(self, base: Ratio, exponent: Fraction) -> Ratio:
        """The base raised to a rational exponent."""
        if abs(exponent) > MAX_EXPONENT:
            raise Unreadable("too_large", f"an exponent beyond {MAX_EXPONENT}")
        if exponent.denominator != 1:
            return self.power(self.root(base, exponent.denominator), Fraction(exponent.numerator))
        count = abs(int(exponent))
        if exponent < 0:
            base = self.divide(number(1), base)
        self.budget.pay_bits(
            count * max((_bits(c) for part in (base.above, base.below) for c in part.values()), default=0)
        )
        return self._ratio(self._to_the(base.above, count), self._to_the(base.below, count))

    def root(self, radicand: Ratio, degree: int) -> Ratio:
        """The principal root; for a negative number and an odd degree, the real root."""
        if degree > 100:
            raise Unreadable("too_large", "a root of a degree beyond 100")
        if radicand.below != ONE:  # (a/b)^(1/n) = (a b^(n-1))^(1/n) / b
            widened = self.times(radicand.above, self._to_the(radicand.below, degree - 1))
            return self.divide(self.root(Ratio(widened, ONE), degree), Ratio(radicand.below, ONE))
        inner = radicand.above
        if not inner:
            return number(0)
        content = _content(inner)
        root = self._root_of_rational(content, degree)
        primitive = {monomial: c / content for monomial, c in inner.items()}
        if primitive == ONE:
            return root
        if primitive == {(): Fraction(-1)} and (degree == 2 or degree % 2):
            return self.multiply(root, atom(IMAGINARY) if degree == 2 else number(-1))
        if len(primitive) == 1:
            ((monomial, sign),) = primitive.items()
            if sign == 1 and all(_splits(one, e, degree) for one, e in monomial):
                halves: Polynomial = {}
                self._collect(halves, Fraction(1), tuple((one, Fraction(e) / degree) for one, e in monomial))
                return self.multiply(root, Ratio(halves, ONE))
        hidden = Atom(f"root {key_of(primitive)}", radicand=primitive)
        return self.multiply(root, atom(hidden, Fraction(1, degree)))

    def _root_of_rational(self, value: Fraction, degree: int) -> Ratio:
        if value == 1:
            return number(1)
        product: Polynomial = {}
        factors = [(p, e) for p, e in factorised(value.numerator)] + [(p, -e) for p, e in factorised(value.denominator)]
        powers = tuple((Atom(f"#{p:x}", prime=p), Fraction(e, degree)) for p, e in factors)
        self.budget.pay_bits(_bits(value))
        self._collect(product, Fraction(1), powers)
        return Ratio(product, ONE)

    def _to_the(self, base: Polynomial, count: int) -> Polynomial:
        if count == 1 or base == ONE:
            return base
        if len(base) == 1:
            ((monomial, coefficient),) = base.items()
            result: Polynomial = {}
            self._collect(result, coefficient**count, tuple((one, e * count) for one, e in monomial))
            return result
        if count > MAX_TERMS:
            raise Unreadable("too_large", f"a sum to the power of {count}")
        result = ONE
        for _ in range(count):
            result = self.times(result, base)
        return result

    def _ratio(self, above: Polynomial, below: Polynomial) -> Ratio:
        """The ratio of two polynomials. If possible, a denominator with one term is multiplied into the numerator."""
        if not below:
            raise Unreadable("wrong", "a division by zero")
        if len(below) == 1 and below != ONE:
            ((monomial, coefficient),) = below.items()
            if all(one.radicand is None for one, _ in monomial):
                inverse = tuple((one, -e) for one, e in monomial)
                return Ratio(self.times(above, _single(self, 1 / coefficient, inverse)), ONE)
        return Ratio(above, below)

    def _collect(self, into: Polynomial, coefficient: Fraction, factors: Iterable[tuple[Atom, Exponent]]) -> None:
        """Add a simplified product of powers of atoms: i² = -1, 2^(3/2) = 2 · 2^(1/2), √x squared is x."""
        exponents: dict[Atom, Exponent] = {}
        for one, exponent in factors:
            exponents[one] = exponents.get(one, 0) + exponent
        settled: list[tuple[Atom, Exponent]] = []
        expanded: Polynomial = ONE
        for one, exponent in exponents.items():
            rest = exponent
            if one == IMAGINARY:
                turns = int(exponent) % 4
                coefficient, rest = (-coefficient if turns > 1 else coefficient), turns % 2
            elif one.prime:
                whole = exponent.__floor__()
                self.budget.pay_bits(abs(whole) * one.prime.bit_length())
                coefficient, rest = coefficient * Fraction(one.prime) ** whole, exponent - whole
            elif one.radicand is not None and exponent >= 1:
                whole = exponent.__floor__()
                expanded, rest = self.times(expanded, self._to_the(one.radicand, whole)), exponent - whole
            if rest:
                settled.append((one, int(rest) if rest == int(rest) else rest))
        monomial = tuple(sorted(settled, key=lambda pair: pair[0].key))
        if expanded is not ONE:
            for extra, c in expanded.items():
                self.budget.pay_work(1)
                self._collect(into, coefficient * c, (*monomial, *extra))
            return
        total = into.get(monomial, Fraction(0)) + coefficient
        if total:
            into[monomial] = total
        else:
            into.pop(monomial, None)


def _single(algebra: Algebra, coefficient: Fraction, factors: Monomial) -> Polynomial:
    result: Polynomial = {}
    algebra._collect(result, coefficient, factors)
    return result


def _added(one: Polynomial, other: Polynomial, sign: int) -> Polynomial:
    total = dict(one)
    for monomial, coefficient in other.items():
        value = total.get(monomial, Fraction(0)) + sign * coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _content(polynomial: Polynomial) -> Fraction:
    """The positive rational that divides every coefficient and leaves integers without a common factor."""
    coefficients = polynomial.values()
    return Fraction(gcd(*(c.numerator for c in coefficients)), lcm(*(c.denominator for c in coefficients)))


def _splits(one: Atom, exponent: Exponent, degree: int) -> bool:
    """Whether (x^e)^(1/n) is x^(e/n): not for the square root of x², which is |x|. π, e and primes are positive."""
    if one == IMAGINARY or one.radicand is not None:
        return False
    return bool(one.prime) or one.key in ("π", "e") or degree % 2 == 1 or exponent == 1


@lru_cache(maxsize=1024)
def factorised(value: int) -> tuple[tuple[int, int], ...]:
    """Primes and their exponents. A factor without prime factors up to SMALL_PRIMES counts as prime unless it is a
    square."""
    if value.bit_length() > 1_400:
        raise Unreadable("too_large", "a root of a number of more than 400 digits")
    found: list[tuple[int, int]] = []
    divisor = 2
    while divisor * divisor <= value and divisor <= SMALL_PRIMES:
        exponent = 0
        while value % divisor == 0:
            value //= divisor
            exponent += 1
        if exponent:
            found.append((divisor, exponent))
        divisor += 1 if divisor == 2 else 2
    if value > 1:
        side = isqrt(value)
        found.append((side, 2) if side * side == value else (value, 1))
    return tuple(found)
