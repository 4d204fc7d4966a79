"""Answers that were written to waste time: the verdict comes quickly, and none of them is the gold."""

from __future__ import annotations

import time

import pytest
from tests.catalogue import catalogue
from tests.verify.mathematics.asked import verdict

from posttrain.verify.mathematics.guard import MAX_CHARS, MAX_DIGITS, MAX_ITEMS, Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse

GOLDS = ("7", "x^2+1", r"\{1,2\}", r"(-\infty,1)", ", ".join(rf"\sqrt{{x+{n}}}" for n in range(1, 40)))
HOSTILE = {
    "a tower": "9^{9^{9^{9}}}",
    "a tower of Python": "9**9**9**9",
    "a power": "7^{30000000}",
    "a factorial": "99999999!",
    "factorials": "+".join(["5000!"] * 60),
    "a factorial of a factorial": "((9!)!)!",
    "a binomial": r"\binom{99999}{50000}",
    "binomials": r"\binom{10000}{5000}" * 20,
    "a sum": r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}",
    "parentheses": "(" * 400 + "7" + ")" * 400,
    "brackets that are never closed": "(" * 250,
    "braces": "{" * 500,
    "digits": "7" * 200_008,
    "digits of one number": "7" * 450,
    "dollars": "$ " * 20_000,
    "signs": "-" * 500 + "7",
    "roots": r"\sqrt" * 120 + "7",
    "roots in roots": r"\sqrt{" * 31 + "2" + "}" * 31,
    "fractions": r"\frac{1}{" * 31 + "x" + "}" * 31,
    "powers of powers": "x^" * 250 + "x",
    "towers of two": "2^{" * 30 + "2" + "}" * 30,
    "functions of functions": r"\sin" * 120 + "x",
    "bars": "|" * 500,
    "a polynomial": "(a+b+c+d)^{99}",
    "a polynomial of a high degree": "(x+1)^{9999}",
    "a power of surds": r"(1+\sqrt2+\sqrt3+\sqrt5+\sqrt7+\sqrt{11})^{20}",
    "a power of roots": r"(\sqrt{x+1}+\sqrt{x+2})^{60}",
    "a root of a long number": r"\sqrt{" + "9" * 399 + "}",
    "a root of two large primes": r"\sqrt{100000000190000000003300000000627}",
    "a list": "1," * 255 + "1",
    "a list of points": "(1,2)," * 80 + "(1,2)",
    "a set": r"\{" + "1," * 250 + r"1\}",
    "unions": "∪".join(f"({n},{n + 1})" for n in range(60)),
    "a chain": "x=1=" * 120 + "1",
    "inequalities": "1<2<" * 100 + "3",
    "double signs": r"\pm1" * 120,
    "exponents": "1e9999" * 80,
    "vulgar fractions": "½" * 500,
    "superscripts": "²" * 500,
    "subscripts": "a_" * 250,
    "a bound of many digits": "2^{9999}x<3^{6000}",
    "an exponent of many digits": "2^{x/3^{9000}}",
    "texts": r"\text{" * 80,
    "matrices": r"\begin{pmatrix}" * 30,
    "a determinant": r"\det\begin{pmatrix}" + r"\\".join("&".join("a" * 8) for _ in range(8)) + r"\end{pmatrix}",
    "a call": "7+0*__import__('os').system('touch x')",
}


@pytest.mark.parametrize("golds", [GOLDS[::4], pytest.param(GOLDS, marks=pytest.mark.slow)], ids=["few", "all"])
@catalogue("name", HOSTILE)
def test_a_hostile_answer_comes_back_at_once_and_is_wrong(name: str, golds: tuple[str, ...]):
    start = time.process_time()
    verdicts = [verdict(gold, HOSTILE[name]) for gold in golds]
    assert time.process_time() - start < len(golds)  # each comparison takes milliseconds
    assert not {True, None} & set(verdicts)


@catalogue(
    "given",
    ["1" * (MAX_CHARS + 1), "9" * (MAX_DIGITS + 1), "(" * 40 + "7" + ")" * 40, "2^{10001}", "5001!",
     r"\binom{10001}{2}", "1," * MAX_ITEMS + "1", "9^9^9^9", "(a+b+c+d)^{99}"],
)  # fmt: skip
def test_past_a_bound_the_answer_is_too_large(given: str):
    with pytest.raises(Unreadable) as refused:
        parse(given, Options())
    assert refused.value.reason == "too_large"


def test_within_the_bounds_large_numbers_are_worked_out():
    assert verdict("10^{400}", "10^{400}") is True
    assert verdict("2^{9999}", "2^{9998}") is False
    assert verdict(r"\frac{5000!}{4999!}", "5000") is not True  # beyond the bits of one answer
    assert verdict(r"\frac{100!}{99!}", "100") is True


@catalogue("empty", ["", "  ", ".", "$$", r"\(\)", "{}", r"\,"])
def test_nothing_is_no_answer(empty: str):
    with pytest.raises(Unreadable) as refused:
        parse(empty, Options())
    assert refused.value.reason == "no_answer"
