r"""Words and signs that make a number an estimate or a bound: `about 7`, `at least 7`, `\approx 7`, `7..`.

Neither is an exact value like the gold. A box with such words in front of it still gives its value: models write
`53.13 \approx \boxed{53}` if they are asked to round.
"""

from __future__ import annotations

import re

from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.sentences import NUMBER

_SIGN = r"(?:≈|≃|≅|~|∼|\\(?:approx|simeq|cong|sim)(?![a-z]))"
_ESTIMATE = r"(?:about|approximately|approx\.?|roughly|nearly|almost|circa)"
_BOUND = (
    r"(?:at\s+(?:the\s+)?(?:least|most|best)|up\s+to|over|under|above|below|beyond|around|close\s+to|no\s+(?:more|less|fewer)\s+than|"
    r"(?:more|less|greater|fewer)\s+than)"
)
_OPENED = r"(?:[\s$({]|\\[(\[]|\\text\s?\{)*"
_ANSWER = re.compile(
    rf"{_OPENED}(?:{_ESTIMATE}|{_BOUND})(?![a-z])[^0-9]{{0,20}}[0-9]"
    rf"|[^0-9=<>,]*{_SIGN}(?:[\s$({{+−-]|\\[a-z]++)*+[0-9]"
    r"|[^,;]*[0-9](?:\.\.|\s?…)\W*$",
    re.IGNORECASE,
)
_OPEN_END = re.compile(r"\+(?!\s*\$?[\w\\(+-])|(?<=\.)\.|\.\.|[\s$]*\(\s*" + _ESTIMATE + r"\s*\)")
_NAMED = re.compile(rf"\s*\\?[A-Za-z]+(?:_\S{{1,9}})?\s*{_SIGN}[^,;]*$")
_ESTIMATED_BEFORE = re.compile(rf"\b{_ESTIMATE}[\s$({{]*$", re.IGNORECASE)
_BOUNDED_BEFORE = re.compile(
    rf"(?:^[\W_]*|\b(?:is|are|was|were|be|it's|has|have|had|of|equals?|makes?|so|thus|answer:?)\s+){_BOUND}[\s$({{]*$",
    re.IGNORECASE,
)
_SIGN_BEFORE = re.compile(rf"^[^0-9]*{_SIGN}[\s$({{]*$")


def is_estimate(answer: str) -> bool:
    r"""Whether an answer calls itself an estimate or a bound. `\frac{1}{3} \approx 0.33` gives its exact value first.

    >>> is_estimate("at least 7"), is_estimate(r"x \approx 7"), is_estimate("7.."), is_estimate(r"\frac13 \approx 0.33")
    (True, True, True, False)
    """
    return _ANSWER.match(answer) is not None


def names_estimate(answer: str) -> bool:
    """Whether an answer is an estimate of a letter, `x ≈ 11`, which is allowed in a chain of equations."""
    return _NAMED.match(answer) is not None


def is_estimated(clause: str, start: int) -> bool:
    """Whether the words before a number make it an estimate: `has about 7`. In `needs at least 7` the number may be
    the minimum that the question asks for, so that is not an estimate.

    >>> is_estimated("It is at least 7", 15), is_estimated("x ≈ 7", 4), is_estimated("6.9 ≈ 7", 6)
    (True, True, False)
    """
    before = clause[max(start - 60, 0) : start]
    return bool(_ESTIMATED_BEFORE.search(before) or _BOUNDED_BEFORE.search(before) or _SIGN_BEFORE.match(before))


def is_open_ended(clause: str, end: int) -> bool:
    """Whether a number in a sentence is continued after its last digit: `7+`, `7..`.

    >>> is_open_ended("It is 7+", 7), is_open_ended("It is 7..", 8), is_open_ended("7 + 8", 1), is_open_ended("7.", 2)
    (True, True, False, False)
    """
    return _OPEN_END.match(clause, end) is not None


def rounds_to(exact: str, rounded: str) -> bool:
    """Whether the second number can be the first one, rounded to the second's digits: 6.9 ≈ 7, 1234 ≈ 1200.

    >>> rounds_to("26.67", "27"), rounds_to("8", "7"), rounds_to("1,234", "1200")
    (True, False, True)
    """
    one, other = _digits(exact), _digits(rounded)
    if one is None or other is None:
        return True
    _, dot, decimals = other.partition(".")
    unit = 10.0 ** (-len(decimals) if dot else len(other) - len(other.rstrip("0")))
    return abs(float(one) - float(other)) < unit


def allows_estimates(options: Options, *, decimal: bool) -> bool:
    """Whether an estimate may be the answer: only with a tolerance and for a gold that is written as a decimal."""
    return decimal and (options.relative_tolerance > 0 or options.absolute_tolerance > 0)


def _digits(text: str) -> str | None:
    number = NUMBER.fullmatch(text)
    plain = number["plain"] if number and not number["slashes"] and len(text) < 40 else None
    return plain.replace(",", "") if plain else None
