"""From the text of an answer to its value."""

from __future__ import annotations

import re
from fractions import Fraction

from posttrain.rewards.mathematics.guard import MAX_CHARS, MAX_DIGITS, Unreadable
from posttrain.rewards.mathematics.options import Options
from posttrain.rewards.mathematics.values import Number, Unread, Value

_PLAIN = re.compile(r"\s*(-?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.([0-9]+))?\.?\s*")


def parse(text: str, options: Options, *, gold: bool = False) -> Value:
    """The value of an answer; Unreadable (`reason`, `detail`) when it has none. `gold`: it is a gold answer."""
    if len(text) > MAX_CHARS:
        raise Unreadable("too_large", f"the answer has {len(text)} characters")
    plain = _PLAIN.fullmatch(text)
    if plain:
        return _plain_number(text, plain)
    if not text.strip():
        raise Unreadable("no_answer", "the answer is empty")
    return Value("".join(text.split()), Unread())


def _plain_number(text: str, match: re.Match[str]) -> Value:
    sign, whole, decimals = match.groups()
    digits = whole.replace(",", "") if "," in whole else whole
    if len(digits) + len(decimals or "") > MAX_DIGITS:
        raise Unreadable("too_large", f"a number of more than {MAX_DIGITS} digits")
    if decimals is None:
        return Value(sign + digits, Number(-int(digits) if sign else int(digits)))
    value = Fraction(int(digits + decimals), 10 ** len(decimals))
    return Value(f"{sign}{digits}.{decimals}", Number(-value if sign else value, decimal=True))
