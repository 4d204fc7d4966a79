"""Any text of a model gives a value or Unreadable, quickly, and every value equals itself."""

from __future__ import annotations

import time
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples
from tests.verify.mathematics.asked import verdict

from posttrain.verify.mathematics.compare import same
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse

PIECES = [
    "\\frac", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "^", "_", "!", "%", "/", "*", "+", "-", "=", "<", "\\le",
    "\\in", "\\cup", "\\setminus", ",", ";", ":", "1", "2", "10", "0.5", "x", "y", "\\pi", "e", "i", "\\sqrt",
    "\\text{ or }", "\\text{cm}", "or", "\\infty", "\\pm", "|", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\",
    "\\sin", "\\log", "_2", "\\sum", "...", "$", "\\$", "~", "\\mathbb{R}", "\\overline", "\\circ", "½", "²", "٧",
    "\u200b", "\\cancel", "f(x)", "\\approx", "percent", "\\varnothing", "A", "AB", "∞", "\\div", ".", '"', "'", " ",
    "\n",
]  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join))
OPTIONS = Options()
OTHERS = [
    parse(gold, OPTIONS, gold=True) for gold in ("7", r"2\sqrt3", "x^2", "(0,1)", r"\{1,2\}", r"\text{A}", "12:00")
]


@examples(100, 400)
@given(TEXTS)
def test_any_text_has_a_value_or_is_unreadable(text: str):
    start = time.process_time()
    try:
        value = parse(text, OPTIONS)
        assert same(value, value, OPTIONS) is not False
        for other in OTHERS:
            same(other, value, OPTIONS)
    except Unreadable:
        pass
    assert time.process_time() - start < 5  # milliseconds, and perhaps the garbage of other tests


@given(st.fractions(min_value=-10_000, max_value=10_000, max_denominator=500))
def test_a_fraction_is_itself_in_every_rendering(value: Fraction):
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    gold = rf"{sign}\frac{{{top}}}{{{bottom}}}"
    renderings = [
        rf"{sign}\dfrac{{{top}}}{{{bottom}}}",
        f"{value.numerator}/{bottom}",
        rf"\frac{{{value.numerator}}}{{{bottom}}}",
        rf"\left({sign}\frac{{{top}}}{{{bottom}}}\right)",
        f"x = {sign}{top}/{bottom}.",
        rf"{sign}\frac{{{3 * top}}}{{{3 * bottom}}}",
    ]
    if top > bottom > 1 and top % bottom:
        renderings.append(rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}")
    assert all(verdict(gold, rendering) is True for rendering in renderings)
    assert verdict(gold, f"{value.numerator + 1}/{bottom}") is False


@given(st.integers(-(10**30), 10**30))
def test_an_integer_is_itself_in_every_rendering_and_no_other(value: int):
    grouped = f"{value:,}"
    renderings = [
        grouped,
        grouped.replace(",", "{,}"),
        grouped.replace(",", r",\!"),
        f"{value}.0",
        f"${value}$",
        f" {value}.",
    ]
    assert all(verdict(str(value), rendering) is True for rendering in renderings)
    assert verdict(str(value), str(value + 1)) is False


@given(st.decimals(-1000, 1000, places=4))
def test_a_decimal_is_the_fraction_that_it_writes(value):
    exact = Fraction(value)
    assert verdict(f"{value:f}", f"{exact.numerator}/{exact.denominator}") is True


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_a_list_is_itself_in_any_order_and_a_tuple_only_in_its_own(items: list[int], chance):
    shuffled = items.copy()
    chance.shuffle(shuffled)
    written, other = ", ".join(map(str, items)), ", ".join(map(str, shuffled))
    assert verdict(written, other) is True
    assert verdict(f"({written})", f"({other})") is (items == shuffled)
    assert verdict(written, f"{written}, 99") is False


@given(st.integers(1, 400), st.integers(1, 400))
def test_roots_are_equal_exactly_when_their_squares_are(one: int, other: int):
    assert verdict(rf"\sqrt{{{one}}}", rf"\sqrt{{{other}}}") is (one == other)
    assert verdict(rf"{one}\sqrt{{{other}}}", rf"\sqrt{{{one * one * other}}}") is True
