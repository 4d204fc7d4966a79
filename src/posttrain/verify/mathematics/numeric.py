"""Verdicts where the gold is one number: word problems, contests with integer answers, measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from time import perf_counter
from typing import Any, Literal

from posttrain.errors import ConfigError, DataError
from posttrain.verify.mathematics.estimates import is_estimate
from posttrain.verify.mathematics.extract import Extracted, Reader, extract
from posttrain.verify.mathematics.golds import gold_text, math_gold
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import AnswerFrom, Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.prose import Number, single_number
from posttrain.verify.mathematics.units import same_unit
from posttrain.verify.mathematics.values import Equation
from posttrain.verify.mathematics.values import Number as NumberValue
from posttrain.verify.mathematics.verify import Message, estimated, hidden_characters, no_answer, text_of
from posttrain.verify.verdict import Verdict, correct

Percent = Literal["exact", "either"]
WORDS = Options(words=True)


def verify_number(
    completion: str | Sequence[Message] | None,
    answer: Any,
    *,
    truncated: bool = False,
    answer_from: AnswerFrom = "anywhere",
    percent: Percent = "exact",
    relative_tolerance: float = 0.0,
    absolute_tolerance: float = 0.0,
) -> Verdict:
    """Whether the one number that a completion gives as its answer is the gold. Never asks for algebra: what our own
    grammar cannot read is no number."""
    start = perf_counter()
    _check_settings(percent, relative_tolerance, absolute_tolerance)
    gold = gold_number(answer)
    reader = _reader(answer_from, estimates=gold.is_decimal and (relative_tolerance > 0 or absolute_tolerance > 0))
    found = extract(text_of(completion), reader)
    if found.answer is not None and not reader.estimates and is_estimate(found.answer):
        return estimated(found.answer)
    verdict = _judge(gold, found, percent, relative_tolerance, absolute_tolerance, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def gold_number(answer: Any) -> Gold:
    """The one number that a gold answer states; DataError when it states none."""
    return _gold_number(gold_text(answer))


class Gold(Number):
    """A gold number, and whether it was written as a decimal: a relative tolerance applies to no other."""

    is_decimal: bool = False


@lru_cache(maxsize=4096)
def _gold_number(text: str) -> Gold:
    latex = math_gold(text)
    number = single_number(latex)
    if number is None:
        raise DataError(
            given=f"the gold answer {text!r} is not one number",
            fix='Correct or drop the row, or use the reward "math" for answers that are formulas.',
        )
    gold = Gold(*number)
    gold.is_decimal = "." in latex
    return gold


def _judge(
    gold: Gold, found: Extracted, percent: Percent, relative: float, absolute: float, *, truncated: bool
) -> Verdict:
    if found.answer is None:
        return no_answer(found, truncated=truncated)
    if hidden_characters(found.answer):
        return Verdict(0.0, "wrong", extracted=found.answer, detail="invisible characters in the answer")
    try:
        given = read_number(found.answer)
    except Unreadable as unreadable:
        return Verdict(0.0, unreadable.reason, extracted=found.answer, detail=unreadable.detail)
    if given is None:
        return Verdict(0.0, "wrong", extracted=found.answer, detail="not one number")
    return correct(_close(gold, given, percent, relative, absolute), found.answer)


def read_number(text: str) -> Number | None:
    """The number that an answer states: among words, or as a formula whose value is rational.

    Unreadable when the formula is no answer: a computation, or too large a one.
    """
    number = single_number(text)
    if number is not None:
        return number
    value = parse(text, WORDS)
    if isinstance(value.meaning, Equation) and value.meaning.result is not None:  # m + n = 204
        value = value.meaning.result
    if not isinstance(meaning := value.meaning, NumberValue) or not same_unit(None, value.unit, any_noun=True):
        return None
    if value.computations:
        raise Unreadable("unevaluated", f"a computation is left undone: {', '.join(sorted(value.computations))}")
    return Number(Fraction(meaning.value) * (100 if meaning.percent else 1), meaning.percent)


def number_of(completion: str | Sequence[Message]) -> Number | None:
    """The one number that a completion gives as its answer.

    >>> number_of("That is 5 + 4 = 9. The answer is 9 eggs.").value
    Fraction(9, 1)
    """
    found = extract(text_of(completion), _reader()).answer
    try:
        return None if found is None or hidden_characters(found) else read_number(found)
    except Unreadable:
        return None


def _close(gold: Gold, found: Number, percent: Percent, relative: float, absolute: float) -> bool:
    pairs = [(gold.exact, found.exact)]
    if percent == "either" and gold.percent != found.percent:
        pairs += [(gold.value, found.value)]
    if not gold.is_decimal:
        relative = 0.0
    if not (relative or absolute):
        return any(g == f for g, f in pairs)
    return any(abs(g - f) <= max(Fraction(str(relative)) * abs(g), Fraction(str(absolute))) for g, f in pairs)


def _check_settings(percent: str, relative: float, absolute: float) -> None:
    if not (relative >= 0 and absolute >= 0):
        raise ConfigError(given="a tolerance below 0", allowed="0 or more", fix="Set it to 0.")
    if percent not in ("exact", "either"):
        raise ConfigError(given=f"percent = {percent!r}", allowed="exact or either", fix="Set percent: exact.")


def _reader(answer_from: AnswerFrom = "anywhere", *, estimates: bool = False) -> Reader:
    return Reader(replace(WORDS, answer_from=answer_from), lambda one, other: False, estimates)
