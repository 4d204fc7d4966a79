"""Verdicts for gold answers that are one number: word problems, contests with integer answers, measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from posttrain.errors import ConfigError, DataError
from posttrain.verify.mathematics.extract import Reader, extract
from posttrain.verify.mathematics.golds import gold_text, math_gold
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import AnswerFrom, Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.units import same_unit
from posttrain.verify.mathematics.values import Equation, Number, Value
from posttrain.verify.mathematics.verify import Message, hidden_characters, judge, text_of
from posttrain.verify.verdict import Verdict

Percent = Literal["exact", "either"]
WORDS = Options(words=True)


def numeric(
    completion: str | Sequence[Message] | None,
    answer: Any,
    *,
    truncated: bool = False,
    answer_from: AnswerFrom = "anywhere",
    percent: Percent = "exact",
    relative_tolerance: float = 0.0,
    absolute_tolerance: float = 0.0,
) -> Verdict:
    """Whether the final number equals the gold, compared as exact fractions.

    `1,234`, `$1234`, `1234.0` and `2468/2` are the same number. Units and words around it do not count. `20%` is 1/5;
    with percent = "either" it is also right for 20. With tolerances, an answer is right if
    |found - answer| <= max(relative_tolerance * |answer|, absolute_tolerance). The relative one applies only to golds
    that are written as decimals, so that an integer stays exact. Algebra is never used: a text that our own grammar
    cannot read is not a number.
    """
    if percent not in ("exact", "either"):
        raise ConfigError(given=f"percent = {percent!r}", allowed="exact or either", fix="Set percent: exact.")
    if not (relative_tolerance >= 0 and absolute_tolerance >= 0):
        raise ConfigError(given="a tolerance below 0", allowed="0 or more", fix="Set it to 0.")
    gold = gold_number(answer)
    options = Options(
        words=True,
        answer_from=answer_from,
        percent=percent == "either",
        relative_tolerance=relative_tolerance if gold.decimal else 0.0,
        absolute_tolerance=absolute_tolerance,
    )
    estimates = gold.decimal and (relative_tolerance > 0 or absolute_tolerance > 0)
    if absolute_tolerance:  # holds for integers, too
        gold = replace(gold, decimal=True)
    reader = Reader(options, lambda one, other: False, estimates)
    return judge(completion, Value("", gold), "", reader, truncated=truncated)


def gold_number(answer: Any) -> Number:
    """The one number that a gold answer states. DataError if it states none."""
    return _gold_number(gold_text(answer))


@lru_cache(maxsize=4096)
def _gold_number(text: str) -> Number:
    try:
        number = _one_number(parse(math_gold(text), WORDS))
    except Unreadable:
        number = None
    if number is None:
        raise DataError(
            given=f"the gold answer {text!r} is not one number",
            fix='Correct or drop the row, or use the reward "math" for answers that are formulas.',
        )
    return number


def number_of(completion: str | Sequence[Message]) -> Number | None:
    """The one number that a completion gives as its answer.

    >>> number_of("That is 5 + 4 = 9. The answer is 9 eggs.").value == 9
    True
    """
    found = extract(text_of(completion), Reader(WORDS, lambda one, other: False)).answer
    return None if found is None or hidden_characters(found) else read_number(found)


def read_number(text: str) -> Number | None:
    """The number that an answer states; None if it states none or is a computation.

    >>> [str(read_number(text).value) for text in ("$1,234.50", "m + n = 204", "18 eggs")]
    ['2469/2', '204', '18']
    >>> read_number("7 or 8") is None
    True
    """
    try:
        value = parse(text, WORDS)
    except Unreadable:
        return None
    if isinstance(value.meaning, Equation) and value.meaning.result is not None:  # m + n = 204
        value = value.meaning.result
    return _one_number(value)


def _one_number(value: Value) -> Number | None:
    """The number of a value, with or without a unit; None for other values."""
    counted = same_unit(None, value.unit, any_noun=True) and not value.computations
    return value.meaning if counted and isinstance(value.meaning, Number) else None
