r"""From a completion to a verdict: extract the one answer, read it, compare it with the gold.

    >>> verify(r"so \boxed{0.5}", r"\frac{1}{2}", Options())
    Verdict(1.0, 'correct', extracted='0.5')

Two ways through the same function: without `algebra` it takes microseconds and raises NeedsAlgebra where only symbolic
mathematics can tell; with it, in a process that can be killed, it always answers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics.estimates import allows_estimates, is_estimate, names_estimate
from posttrain.verify.mathematics.extract import Extracted, Reader, extract
from posttrain.verify.mathematics.golds import math_gold, read_gold, require_mathematics
from posttrain.verify.mathematics.guard import NeedsAlgebra, Unreadable, quickly
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.values import Number, Unread, Value
from posttrain.verify.verdict import Verdict

Algebra = Callable[[str, str], bool]
"""Whether two LaTeX expressions are equal; may take long."""
Message = Mapping[str, Any]


def verify(
    completion: str | Sequence[Message] | None,
    answer: Any,
    options: Options,
    *,
    truncated: bool = False,
    algebra: Algebra | None = None,
) -> Verdict:
    """Whether the one answer of a completion is the gold answer. DataError for a gold that cannot be used; without
    `algebra` NeedsWorker where it takes that, or more than QUICK_SECONDS."""
    start = perf_counter()
    gold_text = math_gold(answer, every_box=options.every_box)
    gold = read_gold(gold_text, options)
    if isinstance(gold.meaning, Unread):
        if algebra is None:
            raise NeedsAlgebra
        require_mathematics(gold_text)
    decimal = isinstance(gold.meaning, Number) and gold.meaning.decimal
    reader = Reader(options, algebra, allows_estimates(options, decimal=decimal) or is_estimate(gold_text))
    with quickly() if algebra is None else nullcontext():
        found = extract(text_of(completion), reader)
        verdict = _judge(gold, gold_text, found, reader, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def text_of(completion: str | Sequence[Message] | None) -> str:
    """The text to judge: of a conversation what the assistant said last. None, a message without text, says nothing.

    >>> text_of([{"role": "assistant", "content": "8"}, {"role": "user", "content": "9?"}])
    '8'
    """
    if isinstance(completion, str):
        return completion
    if completion is None:
        return ""
    if isinstance(completion, bytes | Mapping) or not isinstance(completion, Sequence):
        raise DataError(
            given=f"a completion of type {type(completion).__name__}",
            allowed="a text, or the list of the messages of a conversation",
            fix="Pass the text that the model wrote.",
        )
    said = [message.get("content") for message in completion if message.get("role") == "assistant"]
    content = said[-1] if said else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if part.get("type", "text") == "text")


def no_answer(found: Extracted, *, truncated: bool) -> Verdict:
    """The verdict on a completion that gives no answer, or several."""
    reason = found.reason or "no_answer"
    if truncated and reason == "no_answer":
        reason = "truncated"
    return Verdict(0.0, reason, extracted=found.listed, detail=found.detail)


def estimated(answer: str) -> Verdict:
    """The verdict on an estimate or a bound, which is more than one value."""
    return Verdict(0.0, "ambiguous", extracted=answer, detail="an estimate or a bound is no exact value")


def hidden_characters(text: str) -> bool:
    """Whether a text holds characters that nobody sees: zero-width, bidirectional controls, soft hyphens."""
    return not text.isascii() and any(unicodedata.category(character) == "Cf" for character in text)


def _judge(gold: Value, gold_text: str, found: Extracted, reader: Reader, *, truncated: bool) -> Verdict:
    answer = found.answer if found.answer is not None else found.listed
    if answer is None:
        return no_answer(found, truncated=truncated)
    if hidden_characters(answer):
        return Verdict(0.0, "wrong", extracted=answer, detail="invisible characters in the answer")
    if not reader.estimates and is_estimate(answer) and not (reader.options.last_side and names_estimate(answer)):
        return estimated(answer)
    try:
        given = parse(answer, reader.options)
        right = reader.equal(gold, given, gold_text, answer)
    except Unreadable as unreadable:
        if found.answer is None:
            return no_answer(found, truncated=truncated)
        return Verdict(0.0, unreadable.reason, extracted=answer, detail=unreadable.detail)
    if right:
        return Verdict(1.0, "correct", extracted=answer)
    return (
        Verdict(0.0, "wrong", extracted=answer) if found.answer is not None else no_answer(found, truncated=truncated)
    )
