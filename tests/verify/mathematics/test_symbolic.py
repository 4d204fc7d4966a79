"""Algebra beyond exact terms, and math-verify without its leniencies."""

from __future__ import annotations

import pytest
from tests.catalogue import catalogue

pytest.importorskip("math_verify", reason="the extra [math] is not installed")

from posttrain.verify.mathematics.symbolic import equivalent


@catalogue(
    "gold, given",
    [
        (r"1+\sqrt2", r"\sqrt{3+2\sqrt2}"),
        (r"\sqrt[3]{2+\sqrt5}", r"\frac{1+\sqrt5}{2}"),
        (r"\tan^2 y+1", r"\sec^2 y"),
        (r"\sin 2x", r"2\sin x\cos x"),
        (r"\cos 20^\circ", r"\sin 70^\circ"),
        (r"\ln x^2", r"2\ln x"),
        ("|x|", r"\sqrt{x^2}"),
        (r"\binom{n+1}{2}", r"\frac{n(n+1)}{2}"),
        (r"\begin{pmatrix}\sin^2 x\\1\end{pmatrix}", r"\begin{pmatrix}1-\cos^2 x\\1\end{pmatrix}"),
        (r"\sin 2x, \sin x", r"\sin x, 2\sin x\cos x"),
        (r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}", r"F_n = \sum_{k=0}^{n-1} F_{n-k-1} F_k"),
    ],
)
def test_what_is_equal_by_algebra_is_the_gold(gold: str, given: str):
    assert equivalent(gold, given)


@catalogue(
    "gold, given, leniency",
    [
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", "floats rounded to 6 places"),
        ("0.0000004", "0.0000001", "floats rounded to 6 places"),
        (r"\sqrt{3+2\sqrt2}", "2.41421356237309504880168872420969807856967187537694", "decimals of a surd"),
        ("x", "X", "case"),
        ("7", "8=7", "the last of a chain"),
        (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1", "dots"),
        ("56088", r"123\times456", "products"),
        ("5050", r"\sum_{k=1}^{100} k", "sums"),
        ("x", r"\sqrt{x^2}", "signs"),
        (r"\{1,2\}", r"\{1,2,3\}", "supersets"),
        (r"F_n = \sum_{k=0}^{n-1} F_k", r"F_n = \sum_{k=0}^{n-2} F_k", "sums"),
        ("7", "9^{9^{9^9}}", "towers"),
        (r"\int_0^1 x\,dx", r"\int_0^1 X\,dX", "case"),
    ],
)
def test_no_leniency_of_math_verify_is_left(gold: str, given: str, leniency: str):
    assert not equivalent(gold, given), leniency


def test_an_empty_answer_is_not_the_gold():
    assert not equivalent("7", "")
