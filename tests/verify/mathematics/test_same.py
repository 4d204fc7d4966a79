"""Which answers are the gold answer, and which are not, by kinds of mathematics."""

from __future__ import annotations

import pytest
from tests.catalogue import catalogue
from tests.verify.mathematics.asked import verdict

from posttrain.errors import ConfigError
from posttrain.verify.mathematics.options import Options

ANOTHER_SPELLING = {
    "numbers": r"""
        \frac{1}{2} | 0.5 | 1/2 | \dfrac12 | \tfrac{1}{2} | ½ | .5 | 50\% | 50 percent | \frac{-1}{-2} | 0.50
        1000 | 1,000 | 1{,}000 | 1,\!000 | 1\,000 | 1 000 | 1000. | 1000.0 | 1e3 | 1\times10^3 | $1000$ | \(1000\)
        \frac{7}{2} | 3\frac{1}{2} | 3\tfrac12 | 3½ | 3 1/2 | 3.5
        -7 | −7 | {-7} | (-7) | -7.0 | -\frac{14}{2}
        \frac{1}{3} | 0.\overline{3} | 1/3
        7 | ７ | 007 | +7 | \text{7} | \mathbf{7} | \approx 7 | x = 7 | x = 14/2 = 7 | 7 = x | 7^1 | \sqrt{49}
        1024 | 2^{10} | 2^10 | 2**10
        120 | 5! | \binom{10}{3}
        10^{400} | 1.0e400
        12300000 | 1.23\times10^7 | 12.3\times10^6 | 12.3 \cdot 10^{6} | 0.0123\times10^9
        -0.015 | -15\times10^{-3} | -1.5*10^{-2}
        12345678901234567890 | 12345678901234567890 | 12,345,678,901,234,567,890""",
    "surds": r"""
        2\sqrt{3} | \sqrt{12} | 2\sqrt3 | 2√3 | 2 \cdot \sqrt{3} | \frac{6}{\sqrt3} | 12^{1/2} | 2*sqrt(3)
        \sqrt{12} | \sqrt[4]{144}
        \frac{1}{\sqrt2} | \frac{\sqrt2}{2} | \sqrt{\frac12} | 2^{-1/2}
        \sqrt2+\sqrt3 | \sqrt3+\sqrt2 | \frac{1}{\sqrt3-\sqrt2}
        \sqrt[3]{-8} | -2
        2\sqrt[3]{2} | \sqrt[3]{16} | 16^{1/3}
        3\pi/4 | \frac{3\pi}{4} | \frac34\pi | 0.75\pi | \frac{3}{4}π
        1-\frac{1}{\mathrm{e}} | 1 - e^{-1}
        \frac{11}{5}-\frac25i | \frac{11-2i}{5}
        \ln 12 | 2\ln 2+\ln 3
        \log_2 5 | \frac{\ln 5}{\ln 2}""",
    "symbols": r"""
        x^2+2x+1 | (x+1)^2 | 1 + 2x + x^2 | x^{2}+2*x+1 | x²+2x+1
        \frac{x+2}{7} | \frac{x}{7}+\frac{2}{7}
        \frac{x^2-1}{x-1} | x+1
        2^{n+1} | 2\cdot 2^n
        e^{2x} | (e^x)^2
        2\sin b\cos a | 2\cos(a)\sin(b)
        \frac{1}{3\sqrt[3]{x}^2} | \frac{1}{3x^{2/3}}
        f(x)=x^2 | x^2 | f(x) = x^2
        y=2x+3 | 2x+3 | 2y=4x+6 | 2x-y+3=0
        \frac{x^2}{4}+\frac{y^2}{3}=1 | 3x^2+4y^2=12
        y=2x | x=\frac{y}{2}
        \vec{a}+\vec{b} | \vec b+\vec a
        -34x+45y=100 | 34x-45y+100=0""",
    "several": r"""
        2,-2 | -2, 2 | \pm 2 | x=2 \text{ or } x=-2 | 2 and -2 | \{2,-2\} | {-2, 2}
        1\pm\sqrt{19} | 1-\sqrt{19}, 1+\sqrt{19}
        \{1,2\} | \{2,1\} | \{1,1,2\} | 1,2
        6, 8\text{, and }10 | 6, 8, 10 | 10;8;6
        (3,1) | \left(3,\,1\right) | (3, 1.0) | (x,y)=(3,1)
        (1,2),(2,1) | (2,1), (1,2) | (2,1) \text{ and } (1,2)
        \begin{pmatrix}1\\\frac12\end{pmatrix} | \begin{bmatrix}1\\0.5\end{bmatrix}
        \begin{pmatrix}1\\\frac12\end{pmatrix} | \frac12\begin{pmatrix}2\\1\end{pmatrix}
        1, 2, \ldots, n | 1,2,\dots,n
        \emptyset | \varnothing | \{\}""",
    "intervals": r"""
        [0,1) | 0\le x<1 | x\in[0,1) | 1>x\ge0 | \left[0, 1\right)
        (-\infty,3] | x\le3 | x <= 3 | 3 \ge x | -x\ge-3 | 2x\le 6
        (-\infty,2)\cup(2,\infty) | (2,\infty)\cup(-\infty,2) | x\ne2 | \mathbb{R}\setminus\{2\} | x<2 or x>2
        (-\infty,\infty) | \mathbb{R}
        [1,3]\cup[2,5] | [1,5]
        \{-1\}\cup[0,7) | [0,7) \cup \{-1\}""",
    "words and units": r"""
        \text{A} | A | (A) | \text{(A)} | \mathrm{A} | \textbf{(A)} | A.
        \text{Tuesday} | Tuesday | \text{ Tuesday. }
        \text{13} | 13
        10\text{ cm} | 10 | 10 cm | 10 centimeters | 10\mathrm{cm}
        15\text{ cm}^2 | 15 \text{ square centimeters} | 15 \text{ sq. cm} | 15
        18 | \$18 | 18 \text{ dollars} | $18 | 18\text{ cm} | 18^\circ
        90^\circ | 90 | 90^{\circ} | 90° | 90 \text{ degrees}
        \$32,\!348 | 32348 | \$32{,}348 | 32,348 \text{ dollars}
        101_2 | 101_{2} | 101_{\text{two}}
        \text{A5}_{11} | A5_{11}
        8\!:\!34\text{ p.m.} | 8:34 \text{ PM} | 8:34 pm
        1:4 | 1 : 4
        \frac{NO}{BO}=\frac{1}{\sqrt{6}} | \frac{1}{\sqrt6}""",
}

ANOTHER_ANSWER = {
    "numbers": r"""
        7 | 8 | 0.07 | 700 | 7\% | 7i | \pm 7 | -7 | 7x | x | {} | 7? | 7\ldots | 7... | 7,0 | \square | \frac{7}{0}
        10000 | 10001 | 9999.9999999999999 | 1,0000
        0.0000004 | 0.0000001 | 0
        0.1 | 0.1000000001 | \frac{1}{9}
        \frac13 | 0.333 | 0.3333333333333333333333333333333333 | 33\%
        \pi | 3.14 | 3.14159265358979323846264338327950288 | \frac{22}{7} | π+10^{-300}
        \frac{1}{2004!} | \frac{1}{2006!} | 0
        1\sqrt{19} | 1
        3\frac12 | 3\cdot\frac12 | 31/2 | \frac32""",
    "several answers": r"""
        7 | 7 \text{ or } 8 | 7 or 8 | 6,7 | 7,7 | \{7\} | [7] | (7,8) | x=7, y=8 | 7; 8 | 0 1 2 3 4 5 6 7
        \{1,2\} | \{1,2,3\} | \{1\} | 1 | (1,2)
        (1,2) | 1,2 | \{1,2\} | [1,2] | (2,1) | (1,2,3)
        2,2,3 | 2,3
        n=2, 3, 4 | n=1, 2, 3
        1, 2, \ldots, n | 1, 3, 5, \ldots, 2n-1 | 2, 1, \ldots, n
        \pm 2021 | 2021
        x=5 | y=5""",
    "chains": r"""
        7 | 8=7 | x=8=7 | 7=8 | 7 \approx 8 | 7 < 8 | x > 7 | x \ne 7 | x=7=y=8 | 5+5=7
        11 | x = 5+5+1 = 7 = 11""",
    "symbols": r"""
        x | X | x_1 | y
        x+1 | x+2 | y+1 | \sqrt{x^2}+2
        f(x) | f(y)
        \ln 2 | \log 2
        y=2x+3 | y=3x+2 | x=2y+3 | 2x+3=0
        \overline{AB} | \overline{BA}
        7=11a+c | 11a+c
        3x-y+13=0 | 3x+4y+14=0
        x<1 | x>1 | x\le1 | -x<-1
        \text{CAB} | ABC | ACB""",
    "intervals": r"""
        (0,1) | \mathbb{R} | [0,1] | (0,1] | (1,0) | 0,1 | 0<x<2
        (3,1) | (1,3) | (4,2) | \emptyset
        (-\infty,2)\cup(2,\infty) | (-\infty,\infty) | (-\infty,2)\cup(3,\infty)""",
    "words and units": r"""
        \text{A} | B | a | \text{A) 5} | A, B | AB
        \text{Tuesday} | \text{tuesday} | \text{not Tuesday}
        10\text{ cm} | 10 \text{ m} | 10 \text{ cm}^2 | 10 \text{ kg}
        5.4\text{ cents} | 5.4\text{ dollars} | \$5.4
        18 | 18 \text{ eggs} | 18 \text{ million} | 18 \text{ hundred} | 18 \text{ or so} | 18 \text{ is wrong}
        101_2 | 101 | 5 | 101_3
        12:00 | 1:00 | 12 | 12:00 pm
        1:4 | 2:8 | 4:1
        \begin{pmatrix}1\\2\end{pmatrix} | (1,2) | \begin{pmatrix}1&2\end{pmatrix} | [open('x','w').write('1'),2]""",
    "glyphs": "7 | ٧ | 7\u200b8 | 7\u200b | \u202e7 | 7\u0338 | ⑦\u00ad\n\\text{A} | \u0410\nx | \u0445\n",
}


def cases(table: dict[str, str]) -> list[tuple[str, str]]:
    rows = [[part.strip() for part in line.split(" | ")] for text in table.values() for line in text.split("\n")]
    return [(gold, given) for gold, *answers in rows for given in answers]


def test_another_spelling_of_the_gold_is_the_gold():
    assert [case for case in cases(ANOTHER_SPELLING) if verdict(*case) is not True] == []


def test_another_answer_is_not_the_gold():
    no = (False, "wrong", "ambiguous", "unevaluated", "no_answer")
    assert [case for case in cases(ANOTHER_ANSWER) if verdict(*case) not in no] == []


@catalogue(
    "gold, given",
    [
        ("56088", r"123\times456"),
        ("56088", r"123 \cdot 456"),
        ("56088", "123*456"),
        ("56088", "(123)(456)"),
        ("5050", r"\sum_{k=1}^{100} k"),
        ("6", "2+4"),
        ("7", r"14 \div 2"),
        ("7", r"\frac{3+4}{1}"),
        ("7", "--7"),
        ("3", r"\log_2 8"),
        ("7", r"|-7|"),
        ("7", r"\lfloor 7.5\rfloor"),
        (r"\frac12", r"\sin 30^\circ"),
        ("1023", "2^{10}-1"),
        ("1230", r"12.3\times10^2"),
        ("1230000", r"1230\times10^3"),
        ("12300000", r"12.3\times10^{12/2}"),
        ("12300000", r"12.3\times10^3\times10^3"),
        ("5", r"\gcd(10, 15)"),
        ("7", r"\int_0^7 dx"),
        ("7", r"\lim_{x\to 7} x"),
        ("1", r"3^{10^{10}} \bmod 2"),
        ("-5+10i", "(1+2i)(3+4i)"),
        ("-4", "(1+i)^4"),
        (r"\frac{1+i}{2}", r"\frac{1}{1-i}"),
    ],
)
def test_a_computation_in_place_of_its_result_is_unevaluated(gold: str, given: str):
    assert verdict(gold, given) == "unevaluated"


@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("2^{27}-2^{11}", "2^{27}-2^{11}"),
        ("2^{27}-2^{11}", "-2^{11}+2^{27}"),
        ("2^{27}-2^{11}", "134215680"),
        (r"\log_2 5", r"\log_2 5"),
    ],
)
def test_what_the_gold_leaves_undone_the_answer_may(gold: str, given: str):
    assert verdict(gold, given) is True


def test_a_computation_is_an_answer_where_the_data_set_says_so():
    assert verdict("6", "2+4", require_evaluated=False) is True


@catalogue("given", ["8=7", "x=8=7", r"x = \frac{6}{2} = 4", r"7 \approx 8", "x = y + 1 = 7"])
def test_a_chain_whose_sides_differ_is_ambiguous(given: str):
    assert verdict("7", given) == "ambiguous"


@catalogue("given", [r"\cancel{8}7", r"7\phantom{8}", r"\color{white}{8}7", r"\not 7", "7\u200b", "7\u2066"])
def test_what_hides_a_part_of_the_answer_is_wrong(given: str):
    assert verdict("7", given) == "wrong"


@catalogue(
    "option, gold, given",
    [
        ({"percent": True}, "7", r"7\%"),
        ({"percent": True}, r"7\%", "7"),
        ({"words": True}, "18", r"18 \text{ eggs}"),
        ({"words": True}, "18", r"18 \text{ red marbles}"),
        ({"base": True}, "101_2", "101"),
        ({"ignore_case": True}, r"\text{Tuesday}", "tuesday"),
        ({"ignore_case": True}, "A", "a"),
        ({"natural_log": True}, r"\ln 2", r"\log 2"),
        ({"decimal_comma": True}, "2,74", "2.74"),
        ({"relative_tolerance": 0.01}, "3.14", "3.15"),
        ({"relative_tolerance": 0.01}, "3.14", r"\frac{22}{7}"),
        ({"absolute_tolerance": 0.01}, "3.14", "3.149"),
    ],
)
def test_an_option_accepts_what_is_wrong_without_it(option: dict[str, object], gold: str, given: str):
    assert verdict(gold, given, **option) is True
    assert verdict(gold, given) is not True


@catalogue(
    "option, gold, given",
    [
        ({"percent": True}, r"7\%", r"700"),
        ({"words": True}, "18", r"18 \text{ or } 19"),
        ({"words": True}, "18", r"18 \text{ is not it}"),
        ({"words": True}, "18", r"18 \text{ million}"),
        ({"base": True}, "101_2", "101_3"),
        ({"ignore_case": True}, "x", "X"),
        ({"ignore_case": True}, "x+1", "X+1"),
        ({"ordered": True}, "1, 2", "2, 1"),
        ({"relative_tolerance": 0.01}, "3.14", "3.2"),
        ({"relative_tolerance": 0.01}, "314", "315"),
        ({"relative_tolerance": 0.01}, r"\frac13", "0.333"),
        ({"absolute_tolerance": 0.01}, r"\pi", "3.14159"),
    ],
)
def test_an_option_accepts_no_more_than_it_says(option: dict[str, object], gold: str, given: str):
    """A tolerance applies only to a gold that is written as a decimal; case is never folded in symbols."""
    assert verdict(gold, given, **option) in (False, "wrong")


def test_the_order_of_a_list_counts_only_on_request():
    assert verdict("1, 2", "2, 1") is True
    assert verdict("1, 2", "2, 1", ordered=True) is False


def test_a_tolerance_below_zero_is_refused():
    with pytest.raises(ConfigError, match="relative_tolerance = -1"):
        Options(relative_tolerance=-1)


@pytest.mark.parametrize(
    ("gold", "given"),
    [
        (r"1+\sqrt2", r"\sqrt{3+2\sqrt2}"),
        (r"\tan^2 y+1", r"\sec^2 y"),
        (r"\sin 2x", r"2\sin x\cos x"),
        ("|x|", r"\sqrt{x^2}"),
    ],
)
def test_only_what_agrees_at_some_points_but_not_term_by_term_needs_algebra(gold: str, given: str):
    assert verdict(gold, given) is None
    assert verdict(gold, f"{given}+1") is False
