"""Exact algebra, against floating point and against identities that are known."""

from __future__ import annotations

import cmath
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.verify.mathematics.approximate import approximate
from posttrain.verify.mathematics.evaluate import Evaluator
from posttrain.verify.mathematics.grammar import expression
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.polynomials import Algebra, factorised, number
from posttrain.verify.mathematics.tokens import tokenise
from posttrain.verify.mathematics.values import Literal, Minus, Node, Power, Product, Quotient, Root, Sum, Symbol

NUMBERS = st.integers(1, 60).map(Literal)
LEAVES = st.one_of(
    NUMBERS, st.sampled_from([Symbol("x"), Symbol("y"), Symbol("π")]), st.builds(Root, NUMBERS, st.integers(2, 4))
)


def grown(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(lambda a, b: Sum((a, b)), nodes, nodes),
        st.builds(lambda a, b: Product((a, b), signed=False), nodes, nodes),
        st.builds(Quotient, nodes, nodes),
        st.builds(Minus, nodes),
        st.builds(Power, nodes, st.integers(0, 3).map(Literal)),
    )


EXPRESSIONS = st.recursive(LEAVES, grown, max_leaves=6)


def point(name: str) -> complex:
    return {"x": 1.37, "y": 0.61}[name]


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS)
def test_exact_sums_and_products_agree_with_floating_point(one: Node, other: Node):
    """a + b - b = a and a b / b = a hold exactly; a = b holds only if floating point agrees."""
    evaluator = Evaluator(Options())
    algebra = evaluator.algebra
    try:
        a, b = evaluator(one), evaluator(other)
        assert algebra.equal(algebra.add(algebra.add(a, b), b, sign=-1), a)
        if b.above:
            assert algebra.equal(algebra.divide(algebra.multiply(a, b), b), a)
        equal = algebra.equal(a, b)
    except Unreadable:
        return
    rough = [approximate(node, point, Options()) for node in (one, other)]
    if equal and rough[0] is not None and rough[1] is not None:
        assert cmath.isclose(rough[0], rough[1], rel_tol=1e-6, abs_tol=1e-6)


@catalogue(
    "one, other",
    [
        (r"\sqrt{12}", r"2\sqrt{3}"),
        (r"\sqrt{2}\sqrt{3}", r"\sqrt{6}"),
        (r"\sqrt{2}\sqrt[3]{2}", "2^{5/6}"),
        (r"(\sqrt{2}+\sqrt{3})^2", r"5+2\sqrt{6}"),
        (r"\frac{1}{\sqrt{2}-1}", r"\sqrt{2}+1"),
        (r"(\sqrt{x+1})^2", "x+1"),
        (r"\sqrt{8x+4}", r"2\sqrt{2x+1}"),
        ("i^{10}", "-1"),
        (r"\sqrt{-4}", "2i"),
        ("4^{n}", "(2^n)^2"),
        (r"\log_2 8", "3"),
        (r"\ln\frac{2}{3}", r"\ln 2-\ln 3"),
        (r"\tan x\cos x", r"\sin x"),
    ],
)
def test_identities_hold_term_by_term(one: str, other: str):
    evaluator = Evaluator(Options())
    a, b = (evaluator(expression(tokenise(text))) for text in (one, other))
    assert evaluator.algebra.equal(a, b)


@pytest.mark.parametrize(("one", "other"), [(r"\sqrt{x^2}", "x"), (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"), ("x^2", "x")])
def test_what_is_no_identity_is_none(one: str, other: str):
    evaluator = Evaluator(Options())
    a, b = (evaluator(expression(tokenise(text))) for text in (one, other))
    assert not evaluator.algebra.equal(a, b)


@given(st.integers(1, 10**12))
def test_factors_multiply_to_the_number(value: int):
    product = 1
    for prime, exponent in factorised(value):
        product *= prime**exponent
    assert product == value


def test_a_division_by_zero_has_no_value():
    with pytest.raises(Unreadable, match="division by zero"):
        Algebra().divide(number(Fraction(1)), number(0))
