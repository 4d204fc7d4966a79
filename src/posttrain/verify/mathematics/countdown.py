r"""The numbers game: reach a target from given numbers with + - * /, each number used exactly once.

    >>> countdown("<answer>(25 - 4) * 3 = 63</answer>", target=63, numbers=[3, 4, 25]).reason
    'correct'

The expression is read by a grammar of sums, products and brackets and worked out in exact fractions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from time import perf_counter
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.extract import MAX_SEGMENT, final_segment
from posttrain.verify.mathematics.guard import MAX_CHARS, MAX_NESTING, Unreadable
from posttrain.verify.mathematics.sentences import without_dollars
from posttrain.verify.mathematics.verify import Message, hidden_characters, text_of
from posttrain.verify.verdict import Verdict, correct

MAX_DIGITS = 12
"""Digits of a number in the game."""

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")
_SPELLINGS = {
    "×": "*", "·": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")",
    "\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": "", "\\,": " ", "\\;": " ", "\\ ": " ",
}  # fmt: skip
_SPELLED = re.compile("|".join(map(re.escape, sorted(_SPELLINGS, key=len, reverse=True))))
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


def countdown(
    completion: str | Sequence[Message],
    target: Any,
    numbers: Sequence[Any] | None = None,
    nums: Sequence[Any] | None = None,
    *,
    truncated: bool = False,
) -> Verdict:
    r"""Whether the expression in the `<answer>` tag or the box gives the target and uses exactly the given numbers.

    The columns are `target` and `numbers`, or `nums` as in the published data sets. `= target` may follow. A sign in
    front of a number is no operation of the game, and neither is writing two numbers side by side.
    """
    start = perf_counter()
    goal, given = _game(target, numbers if numbers is not None else nums)
    verdict = _verdict(final_segment(text_of(completion)), goal, given, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def _verdict(segment: str, goal: Fraction, given: list[int], *, truncated: bool) -> Verdict:
    if len(segment) > MAX_SEGMENT:
        return Verdict(0.0, "too_large", detail=f"a text of {len(segment)} characters")
    shown = _shown(segment)
    if shown is None or len(shown) > 1:
        return Verdict(0.0, "ambiguous", detail="several expressions")
    if not shown:
        return Verdict(0.0, "truncated" if truncated else "no_answer", detail="no <answer> and no box")
    text = shown[0]
    if len(text) > MAX_CHARS:
        return Verdict(0.0, "too_large", extracted=text, detail=f"{len(text)} characters")
    if hidden_characters(text):
        return Verdict(0.0, "wrong", extracted=text, detail="invisible characters in the answer")
    expression, *results = without_dollars(text).split("=")
    try:
        value, used = _Expression(expression).read()
        stated = [_Expression(result).read()[0] for result in results]
    except (Unreadable, ZeroDivisionError) as error:
        reason = error.reason if isinstance(error, Unreadable) else "wrong"
        return Verdict(0.0, reason, extracted=text, detail=getattr(error, "detail", "division by zero"))
    if any(result != value for result in stated) or len(stated) > 1:
        return Verdict(0.0, "ambiguous", extracted=text, detail="the two sides differ")
    if sorted(used) != sorted(given):
        return Verdict(0.0, "wrong", extracted=text, detail=f"uses {sorted(used)} of {sorted(given)}")
    return correct(value == goal, text, detail="" if value == goal else f"gives {value}, not {goal}")


def _shown(segment: str) -> list[str] | None:
    """The different expressions in tags and boxes; None when there are too many."""
    boxes, tags = places.find_boxes(segment), places.find_tags(segment)
    if boxes is None or tags is None:
        return None
    if boxes and boxes[-1].closing < 0:
        return []
    shown = [segment[box.opening : box.closing] for box in boxes] + [tag for tag in tags if "\\boxed" not in tag]
    return list({"".join(text.split()): text.strip() for text in shown if text.strip()}.values())


def _game(target: Any, numbers: Sequence[Any] | None) -> tuple[Fraction, list[int]]:
    """The target and the numbers of a row; DataError when they are none."""
    try:
        if isinstance(numbers, str) or not numbers or isinstance(target, bool):
            raise ValueError
        goal, given = Fraction(str(target)), [Fraction(str(number)) for number in numbers]
        if any(number.denominator != 1 or not 0 <= number < 10**MAX_DIGITS for number in given):
            raise ValueError
        return goal, [int(number) for number in given]
    except (ValueError, ZeroDivisionError, TypeError):
        raise DataError(
            given=f"target {target!r} with numbers {numbers!r} is no numbers game",
            allowed="a number as target and a list of whole numbers",
            fix="Correct or drop the row; the columns are `target` and `numbers` (or `nums`).",
        ) from None


class _Expression:
    """sum = product {(+|-) product};  product = atom {(*|/) atom};  atom = number | ( sum )"""

    def __init__(self, text: str) -> None:
        text = _FRACTION.sub(r"((\1)/(\2))", text)
        self._tokens = list(_tokens(_SPELLED.sub(lambda match: _SPELLINGS[match.group()], text)))
        self._at = 0
        self._used: list[int] = []

    def read(self) -> tuple[Fraction, list[int]]:
        """Value and the numbers used; Unreadable or ZeroDivisionError."""
        value = self._sum(0)
        if self._at < len(self._tokens):
            raise Unreadable("wrong", f"{self._tokens[self._at]!r} in the wrong place")
        return value, self._used

    def _sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while (sign := self._take("+", "-")) is not None:
            term = self._product(depth)
            value = value + term if sign == "+" else value - term
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._atom(depth)
        while (sign := self._take("*", "/")) is not None:
            factor = self._atom(depth)
            value = value * factor if sign == "*" else value / factor
        return value

    def _atom(self, depth: int) -> Fraction:
        if depth > MAX_NESTING:
            raise Unreadable("too_large", "too many brackets within each other")
        if self._take("(") is not None:
            value = self._sum(depth + 1)
            if self._take(")") is None:
                raise Unreadable("wrong", "a bracket is not closed")
            return value
        if self._at >= len(self._tokens) or not self._tokens[self._at].isdigit():
            raise Unreadable("wrong", "a number is missing")
        number = int(self._tokens[self._at])
        self._at += 1
        self._used.append(number)
        return Fraction(number)

    def _take(self, *signs: str) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at] in signs:
            self._at += 1
            return self._tokens[self._at - 1]
        return None


def _tokens(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            raise Unreadable("wrong", f"{text[at:].strip()[:20]!r} is no part of the game")
        if len(token[1] or "") > MAX_DIGITS:
            raise Unreadable("too_large", f"a number of {len(token[1])} digits")
        yield token[1] or token[2]
        at = token.end()
