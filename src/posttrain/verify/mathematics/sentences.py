"""The parts of a sentence: its formulas, numbers and computations, those that it claims, and whether it is prose."""

from __future__ import annotations

import re
from fractions import Fraction

from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.units import MULTIPLES
from posttrain.verify.mathematics.values import Number

HEDGE = r"(?:or|maybe|perhaps|possibly|alternatively|otherwise)\b"
FORMULA = re.compile(
    r"(?<!\\)\$\$(?P<a>[^$]+)\$\$|(?<!\\)\$(?P<b>(?:[^$\\]|\\.)+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]", re.DOTALL
)
AMOUNTS = re.compile(r"\$\s*[0-9][0-9.,]*\s+[a-z]{2,}|\$\s*[0-9][^$\\]*[-+*/=×]\s*\$(?=[0-9]|$)")
"""The beginning of `$5 and $6` and of `$2 = $2`, which are not formulas."""
_LETTER = re.compile(r"^\W*[A-Za-z][).:]\s*|\([a-z]\)")
"""Marks that label the parts of a list: `a)`, `B.`, `(c)`."""
_OPERATION = re.compile(r"\s*(?:[-+*/×÷=^]|x\s|\\times|\\cdot)")

_DIGITS = r"(?:[0-9]++(?:,[0-9]++)*+(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?+"
NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-−+])?(?:\\?[$€£¥₹]\s?)?(?:(?<=[$€£¥₹])[-−+])?"
    r"(?<!\w)(?<![0-9]\.)(?:"
    r"(?:[0-9]++)?\s?\\[dt]?frac\s?(?:\{\s?-?[0-9]++\s?\}\s?\{\s?[0-9]++\s?\}|[0-9][0-9])"
    r"|[0-9]++[ ][0-9]++/[0-9]++(?![0-9.,]*/)"
    rf"|(?P<plain>{_DIGITS})(?P<slashes>(?:\s?/\s?{_DIGITS})*+)"
    rf")(?:\s(?:{'|'.join(MULTIPLES)})s?\b)?(?:\s?(?:\\?%|per\s?cent\b|pct\b))?"
)
"""A number with its sign, its currency and its percent sign. `1 million` is one number."""

_TERM = (
    r"\(*+\s*+(?:\\?[$€£¥]\s?)?(?:\\[dt]?frac\{[0-9]++\}\{[0-9]++\}|[0-9]++(?:,[0-9]{3})*+(?:\.[0-9]++)?+|\.[0-9]++)"
    r"(?:\s?\\?%)?+\s*+\)*+"
)
_SIGN = r"\s*+(?:[-−+*/×÷·]|\\(?:times|cdot|div)|(?:x|of|plus|minus|times|divided\s+by)\b)\s*+"
_EQUATION = re.compile(
    rf"(?P<left>{_TERM}(?:{_SIGN}{_TERM})++)\s*(?:=|\b(?:is|equals|gives|makes|leaves)\b)[\s$({{\\]*$"
)
"""A computation with only numbers, and the sign or word that introduces its result."""
_LONGEST_EQUATION = 160
_WORDS_OF_SIGNS = {"−": "-", "×": "*", "÷": "/", "·": "*", "x": "*", "of": "*", "plus": "+", "minus": "-", "times": "*"}


def is_prose(sentence: str) -> bool:
    """Whether a sentence has words around its formulas, beyond the unit of a number."""
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", FORMULA.sub(" ", sentence))
    return len(words) > 1 or (len(words) == 1 and (FORMULA.search(sentence) is not None or " is " in sentence))


def without_dollars(text: str) -> str:
    """The text without the delimiters of formulas. A currency sign stays."""

    def bare(match: re.Match[str]) -> str:
        return match.group() if AMOUNTS.match(match.group()) else match[match.lastgroup or 0].strip()

    return FORMULA.sub(bare, text).strip()


def is_offered(clause: str, start: int, end: int) -> bool:
    """Whether a number is offered as one of several: `or 7`, `7, maybe`."""
    return bool(re.search(rf"\b{HEDGE}\W*$", clause[:start]) or re.match(rf"\W*{HEDGE}", clause[end:]))


def is_claimed(clause: str, start: int, end: int, pattern: re.Pattern[str]) -> bool:
    """Whether a sentence claims a number as its result: `is 12`, `= 12`, but not the 9 of `makes 9 * 2`."""
    goes_on = _OPERATION.match(clause, end)
    return not goes_on and pattern.search(clause, 0, start) is not None


def atoms_of(sentence: str) -> list[tuple[str, int, int]]:
    """The formulas and the numbers outside of them, with their start and end."""
    found: list[tuple[str, int, int]] = []
    at = 0
    for formula in FORMULA.finditer(sentence):
        content = formula[formula.lastgroup or 0]
        if AMOUNTS.match(formula.group()):
            continue
        found += _numbers(sentence, at, formula.start())
        at = formula.end()
        percent = places.PERCENT_BEHIND.match(sentence, at)
        at = percent.end() if percent else at
        found.append((content.strip() + ("\\%" if percent else ""), formula.start(), at))
    return found + _numbers(sentence, at, len(sentence))


def _numbers(sentence: str, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(number.group().strip(), number.start(), number.end()) for number in NUMBER.finditer(sentence, start, end)]


def pattern_of(sentence: str, atoms: list[tuple[str, int, int]]) -> str:
    """A sentence without its numbers, formulas and list letters."""
    pieces, at = [], 0
    for _, start, end in atoms:
        pieces.append(sentence[at:start])
        at = end
    return _LETTER.sub("", "#".join([*pieces, sentence[at:]]))


def contradicts(text: str, start: int) -> str:
    """The computation before a number if its result differs from the number; empty if there is none or it is right. A
    decimal may be rounded.

    >>> contradicts("So 12 - 10 = 1", 13), contradicts("So 12 - 10 = 2", 13), contradicts("a - 10 = 1", 9)
    ('12 - 10', '', '')
    """
    before = text[max(start - _LONGEST_EQUATION, 0) : start]
    found = _EQUATION.search(before)
    number = NUMBER.match(text, start)
    if found is None or number is None or re.match(r"\s*(?:remainder|rem\b|r\b)", text[number.end() :], re.IGNORECASE):
        return ""
    front = before[: found.end() - len(found.group().lstrip())]
    goes_on = front.rstrip()[-1:]
    cut = not front and start > len(before)
    if cut or front[-1:].isalnum() or goes_on.isdigit() or (goes_on and goes_on in "+-−*/×÷·^.(_%,\\"):
        return ""
    left = found["left"].strip()
    return left if _differs(computed(left), _number(number.group()), number.group()) else ""


def computed(text: str) -> Number | None:
    """The result of a computation with only numbers, such as `3 * 6` and `20% of 90`; None for anything else."""
    text = re.sub(r"divided\s+by", "/", text.replace("\\%", "%"))
    text = re.sub(r"\b(?:x|of|plus|minus|times)\b|[−×÷·]", lambda sign: _WORDS_OF_SIGNS[sign.group()], text)
    text = re.sub(r"\\?[$€£¥]", "", text)
    text = re.sub(r"(?<=[0-9])([-/])(?=[0-9])", r" \1 ", text)  # a computation, not a date
    text = text.removeprefix("(") if text.count("(") == text.count(")") + 1 else text
    return None if "%" in text and re.search(r"[-+]", text) else _number(text)


def _number(text: str) -> Number | None:
    try:
        meaning = parse(text, Options(words=True)).meaning
    except Unreadable:
        return None
    return meaning if isinstance(meaning, Number) else None


def _differs(exact: Number | None, given: Number | None, written: str) -> bool:
    if exact is None or given is None or exact.value in (given.value, given.value * 100 if given.percent else None):
        return False
    decimals = len(written.partition(".")[2].rstrip(" %\\"))
    return not decimals or abs(exact.value - given.value) >= Fraction(1, 10**decimals)
