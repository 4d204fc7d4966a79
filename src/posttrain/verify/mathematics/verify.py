r"""Judge a completion: extract its one answer, read it, and compare it with the gold answer.

    >>> verify(r"so \boxed{0.5}", r"\frac{1}{2}", Options())
    Verdict(1.0, 'correct', extracted='0.5')

Within `guard.quickly` it takes microseconds, and raises NeedsWorker if the question needs symbolic mathematics or much
time. Elsewhere, in a process that can be killed, it always answers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics.estimates import allows_estimates, is_estimate, names_estimate
from posttrain.verify.mathematics.extract import Extracted, Reader, extract
from posttrain.verify.mathematics.golds import math_gold, read_gold, require_whole
from posttrain.verify.mathematics.guard import Unreadable, check_algebra
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.values import Number, Unread, Value
from posttrain.verify.verdict import Verdict, correct

Message = Mapping[str, Any]


def verify(
    completion: str | Sequence[Message] | None, answer: Any, options: Options, *, truncated: bool = False
) -> Verdict:
    """Whether the one answer of a completion is the gold answer. DataError for an unusable gold answer."""
    gold_text = math_gold(answer, every_box=options.every_box)
    gold = read_gold(gold_text, options)
    if isinstance(gold.meaning, Unread):
        require_whole(gold_text)
    decimal = isinstance(gold.meaning, Number) and gold.meaning.decimal
    estimates = allows_estimates(options, decimal=decimal) or is_estimate(gold_text)

    def equivalent(one: str, other: str) -> bool:
        check_algebra()
        from posttrain.verify.mathematics import symbolic  # loads sympy, so only if needed

        return symbolic.equivalent(one, other, options)

    return judge(completion, gold, gold_text, Reader(options, equivalent, estimates), truncated=truncated)


def judge(
    completion: str | Sequence[Message] | None, gold: Value, gold_text: str, reader: Reader, *, truncated: bool
) -> Verdict:
    """Whether the one answer of a completion, read by `reader`, is this gold answer."""
    start = perf_counter()
    verdict = _judge(gold, gold_text, extract(text_of(completion), reader), reader, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def text_of(completion: str | Sequence[Message] | None) -> str:
    """The text to judge: for a conversation, the assistant's last message. None, a message without text, is empty.

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


def hidden_characters(text: str) -> bool:
    """Whether a text contains invisible characters: zero-width, bidirectional controls, soft hyphens."""
    return not text.isascii() and any(unicodedata.category(character) == "Cf" for character in text)


def _judge(gold: Value, gold_text: str, found: Extracted, reader: Reader, *, truncated: bool) -> Verdict:
    reason = found.reason or "no_answer"
    if truncated and reason == "no_answer":
        reason = "truncated"
    none = Verdict(0.0, reason, extracted=found.listed, detail=found.detail)
    answer = found.answer if found.answer is not None else found.listed
    if answer is None:
        return none
    if hidden_characters(answer):
        return Verdict(0.0, "wrong", extracted=answer, detail="invisible characters in the answer")
    if not reader.estimates and is_estimate(answer) and not (reader.options.last_side and names_estimate(answer)):
        return Verdict(0.0, "ambiguous", extracted=answer, detail="an estimate or a bound is not an exact value")
    try:
        right = reader.equal(gold, parse(answer, reader.options), gold_text, answer)
    except Unreadable as unreadable:
        wrong = Verdict(0.0, unreadable.reason, extracted=answer, detail=unreadable.detail)
        return none if found.answer is None else wrong
    return correct(right, answer) if right or found.answer is not None else none
