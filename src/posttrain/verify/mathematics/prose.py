r"""Numbers as people write them in sentences: `$1,234.50`, `3 1/2`, `18 dollars`, `28 percent`. Exact, linear in time.

The grammar of mathematics is in `parse.py`; this is the reader of word problems, where a number stands among words.
Nothing here evaluates text.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

from posttrain.verify.mathematics.cursor import NotAnExpression
from posttrain.verify.mathematics.evaluate import Evaluator
from posttrain.verify.mathematics.grammar import expression
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.tokens import tokenise
from posttrain.verify.mathematics.units import MULTIPLES

MAX_DIGITS = 400
"""A longer number is not read: no answer needs it, and converting it would cost quadratic time."""

_DIGITS = r"(?:[0-9]++(?:,[0-9]++)*+(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?+"
NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}])[-−+])?(?:\\?[$€£¥₹]\s?)?(?P<inner_sign>(?<=[$€£¥₹])[-−+])?"
    r"(?<!\w)(?<![0-9]\.)(?:"
    r"(?P<latex_whole>[0-9]++)?\s?\\[dt]?frac\s?(?:\{\s?(?P<a>-?[0-9]++)\s?\}\s?\{\s?(?P<b>[0-9]++)\s?\}|(?P<a1>[0-9])(?P<b1>[0-9]))"
    r"|(?P<whole>[0-9]++)[ ](?P<c>[0-9]++)/(?P<d>[0-9]++)(?![0-9.,]*/)"
    rf"|(?P<plain>{_DIGITS})(?P<slashes>(?:\s?/\s?{_DIGITS})*+)"
    rf")(?P<multiple>\s(?:{'|'.join(MULTIPLES)})s?\b)?(?P<percent>\s?(?:\\?%|percent\b|pct\b))?"
)
"""A number with its sign, its currency and its percent sign; `1 million` is one."""

_TERM = (
    r"\(*+\s*+(?:\\?[$€£¥]\s?)?(?:\\[dt]?frac\{[0-9]++\}\{[0-9]++\}|[0-9]++(?:,[0-9]{3})*+(?:\.[0-9]++)?+|\.[0-9]++)"
    r"(?:\s?\\?%)?+\s*+\)*+"
)
_SIGN = r"\s*+(?:[-−+*/×÷·]|\\(?:times|cdot|div)|(?:x|of|plus|minus|times|divided\s+by)\b)\s*+"
_EQUATION = re.compile(
    rf"(?P<left>{_TERM}(?:{_SIGN}{_TERM})++)\s*(?:=|\b(?:is|equals|gives|makes|leaves)\b)[\s$({{\\]*$"
)
"""A computation with numbers alone, and the sign or word that says what it comes to."""
_LONGEST_EQUATION = 160
_WORDS_OF_SIGNS = {"−": "-", "×": "*", "÷": "/", "·": "*", "x": "*", "of": "*", "plus": "+", "minus": "-", "times": "*"}
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_TEXT_GROUP = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s?\{([^{}]*)\}(?:\s?\^\s?\{?[0-9]\}?)?")
_UNIT_POWER = re.compile(r"(?<![A-Za-z])[A-Za-z]{1,3}\s?\^\s?\{?[23]\}?(?![0-9])")
_OPERATOR = re.compile(r"[-+*/^]")
_VARIABLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_SEVERAL = re.compile(r"[,;](?![0-9])|\b(?:and|or)\b")
_SPACED_MINUS = re.compile(r"^\s*[-−]\s+")
_FORMULA = re.compile(r"[0-9{}\\^+*×·÷!√_<>]|(?<![A-Za-z])/|/(?![A-Za-z])|(?<!\w)[-−]|[-−](?![A-Za-z]{2})")
_DOUBT = re.compile(
    r"\b(?:or|nor|not|never|maybe|perhaps|possibly|either|neither|except|unless|between|than|wrong|incorrect|false|"
    r"zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|million|billion|"
    r"trillion|squared|cubed|factorial|minus|negative|twice|thrice|root|log|ln|sin|cos|tan)\b|n['’]t\b|n-?ish\b|"
    r"[;~|\[\]]|n\s?\?|n['’](?![a-z])|n\.\.|\b[a-z]\(n\)",
    re.IGNORECASE,
)
"""What names another number, changes the one beside it, or takes it back."""
_SIGNS = frozenset({"Sm", "So", "No", "Mn", "Me", "Cs", "Co", "Cn"})
"""Unicode categories of signs and marks that change a number: ±, ½, ≠, a stroke through a digit."""
_GLUED_LETTER = re.compile(r"[A-Za-z](?![A-Za-z])")


class Number(NamedTuple):
    """A number as it was written: `7%` is the value 7 with the percent sign."""

    value: Fraction
    percent: bool = False

    @property
    def exact(self) -> Fraction:
        """What it is: `7%` is 7/100."""
        return self.value / 100 if self.percent else self.value


def single_number(text: str) -> Number | None:
    r"""The number that a final answer states, or None when it states none, several, or a formula.

    A unit, a currency sign and words may stand around the number. Of `name = value` the value counts; of a chain
    `8 = 7`, whose sides differ, nothing does.

    >>> single_number(r"\$1{,}234.50 \text{ dollars}")
    Number(value=Fraction(2469, 2), percent=False)
    >>> single_number(r"x = 3\frac{1}{2}").value
    Fraction(7, 2)
    >>> single_number("7 or 8"), single_number("8 = 7"), single_number("3x + 1")
    (None, None, None)
    """
    *named, stated = _normalised(text).split("=")
    if any(_is_equation(side) for side in named) or (len(named) > 1 and _SEVERAL.search(text)):
        return None
    number = _lone_number(stated)
    if number is None or any(_lone_number(side) not in (None, number) for side in named):
        return None
    if any(_differs(computed(side), number, stated) for side in named[-1:]):
        return None
    return number


def contradicts(text: str, start: int) -> str:
    """The computation before a number that comes to another one; empty where there is none, or it is right. A decimal
    may be rounded.

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
    left, value = found["left"].strip(), to_number(number)
    return left if value is not None and _differs(computed(left), value, number.group()) else ""


def computed(text: str) -> Fraction | None:
    """The exact value of a computation with numbers alone, such as `3 * 6` and `20% of 90`; None for anything else."""
    text = re.sub(r"divided\s+by", "/", text.replace("\\%", "%"))
    text = re.sub(r"\b(?:x|of|plus|minus|times)\b|[−×÷·]", lambda sign: _WORDS_OF_SIGNS[sign.group()], text)
    text = re.sub(r"\\?[$€£¥]", "", text)
    text = text.removeprefix("(") if text.count("(") == text.count(")") + 1 else text
    if not _OPERATOR.search(text) or ("%" in text and re.search(r"[-+]", text)):
        return None
    try:
        return Evaluator(Options())(expression(tokenise(text))).rational
    except (NotAnExpression, Unreadable, RecursionError):
        return None


def _differs(exact: Fraction | None, given: Number, written: str) -> bool:
    if exact is None or exact in (given.value, given.exact):
        return False
    decimals = len(written.partition(".")[2].rstrip(" %\\"))
    return not decimals or abs(exact - given.exact) >= Fraction(1, 10**decimals)


def _normalised(text: str) -> str:
    """Without the spacing, delimiters and text commands of LaTeX: `1{,}000\\,\\text{cm}` becomes `1,000 cm`."""
    text = re.sub(r",\\!|\{,\}", ",", text)
    text = re.sub(r"\\[,!;: ]|\\(?:left|right|displaystyle)(?![A-Za-z])", "", text)
    text = _TEXT_GROUP.sub(r" \1 ", text)
    text = _UNIT_POWER.sub(" unit ", text)
    return text.replace("\\$", "$").replace("\\%", "%")


def _is_equation(left: str) -> bool:
    """Whether the left side of "=" is a formula with a variable (`2x + z`) and no name, or "=" is part of `<=`."""
    return left.rstrip().endswith(("<", ">", "!")) or bool(_OPERATOR.search(left) and _VARIABLE.search(left))


def _lone_number(text: str) -> Number | None:
    """The only number in a text that is otherwise empty or names a unit: no operator, command or variable beside it."""
    text = _SPACED_MINUS.sub("-", text)
    matches = list(NUMBER.finditer(text))
    if len(matches) != 1:
        return None
    start, end = matches[0].span()
    rest = text[:start] + "n" + text[end:]
    if _DOUBT.search(rest) or (not rest.isascii() and any(unicodedata.category(c) in _SIGNS for c in rest)):
        return None
    if _FORMULA.search(rest) or _GLUED_LETTER.match(text, end):
        return None
    return to_number(matches[0])


def to_number(match: re.Match[str]) -> Number | None:
    """The exact value of what `NUMBER` matched; None for `1,22`, `1/2/3`, `1/0` and numbers of absurd length."""
    if len(match.group()) > MAX_DIGITS:
        return None
    part = match.groupdict()
    try:
        if part["plain"]:
            value = _decimal(part["plain"])
            factors = [_decimal(piece) for piece in part["slashes"].split("/")[1:]]
            if len(factors) > 1:
                return None
            value = value / factors[0] if factors else value
        elif part["c"]:
            value = int(part["whole"]) + Fraction(int(part["c"]), int(part["d"]))
        else:
            numerator, denominator = part["a"] or part["a1"], part["b"] or part["b1"]
            value = int(part["latex_whole"] or 0) + Fraction(int(numerator), int(denominator))
    except (ValueError, ZeroDivisionError):
        return None
    value *= MULTIPLES[part["multiple"].strip().removesuffix("s")] if part["multiple"] else 1
    negative = (part["sign"] or part["inner_sign"] or "+") in "-−"
    return Number(-value if negative else value, percent=part["percent"] is not None)


def _decimal(digits: str) -> Fraction:
    """`1,234.5` -> 2469/2. Commas must stand between groups of three; anything else raises ValueError."""
    digits = digits.strip()
    whole, dot, decimals = digits.partition(".")
    if "," in whole and not _GROUPED.fullmatch(whole):
        raise ValueError(f"{digits!r} is not a number")
    return Fraction(whole.replace(",", "") + dot + decimals)
