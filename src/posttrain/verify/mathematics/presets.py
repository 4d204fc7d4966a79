r"""The verifiers for mathematics, one for each kind of dataset. Each is a function on plain strings.

    >>> gsm8k("She makes 9 * 2 = 18 dollars.\n#### 18", "#### 18").reason, aime(r"\boxed{25}", "025").reason
    ('correct', 'correct')

All of them judge the one answer of the completion (`extract.py`) and return a `Verdict`. A completion is a text or a
list of messages. Of messages, the assistant's last one counts. `truncated` says that the completion was truncated at
the length limit. If it then has no answer, the reason is "truncated".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics.guard import NeedsWorker, quickly
from posttrain.verify.mathematics.numeric import gold_number, numeric
from posttrain.verify.mathematics.options import AnswerFrom, Options
from posttrain.verify.mathematics.verify import Message, verify
from posttrain.verify.verdict import Verdict

MATH500 = Options(percent=True, words=True, ignore_case=True)
"""The relaxations of the published graders for MATH: units, percent signs and the case of words do not count."""
MATH_LENIENT = Options(
    words=True,
    decimal_comma=True,
    require_evaluated=False,
    last_side=True,
    rounded_places=2,
    bare_points=True,
    final_statement=True,
    every_box=True,
    inequality_as_set=False,
)
"""The conventions in the test cases of math-verify."""
AIME_LARGEST = 999
"""The largest possible answer in the AIME; the smallest is 0."""

Completion = str | Sequence[Message] | None


def math(
    completion: Completion,
    answer: Any,
    *,
    truncated: bool = False,
    answer_from: AnswerFrom = "anywhere",
    percent: bool = False,
    words: bool = False,
    base: bool = False,
    ignore_case: bool = False,
    natural_log: bool = False,
    decimal_comma: bool = False,
    ordered: bool = False,
    require_evaluated: bool = True,
    last_side: bool = False,
    rounded_places: int = 0,
    bare_points: bool = False,
    final_statement: bool = False,
    every_box: bool = False,
    inequality_as_set: bool = True,
    relative_tolerance: float = 0.0,
    absolute_tolerance: float = 0.0,
) -> Verdict:
    """Whether the final answer is mathematically equal to the gold. The settings are those of `Options`.

    If only algebra can decide (x (x + 1) for x^2 + x beyond what our grammar multiplies out), math-verify decides. That
    can take arbitrarily long. Outside a reward worker, call this only on text that you trust.
    """
    given = locals()
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    return verify(completion, answer, options, truncated=truncated)


def math500(
    completion: Completion, answer: Any, *, truncated: bool = False, answer_from: AnswerFrom = "anywhere"
) -> Verdict:
    """`math` for MATH and MATH-500. As in the published graders, units, percent signs and the case of words do not
    count. Everything else counts, including the subscript of a base."""
    return verify(completion, answer, replace(MATH500, answer_from=answer_from), truncated=truncated)


def math_lenient(
    completion: Completion, answer: Any, *, truncated: bool = False, answer_from: AnswerFrom = "anywhere"
) -> Verdict:
    """`math` with the conventions of math-verify's test cases: the last side of a chain, rounded decimals, unevaluated
    computations, decimal commas. There must still be only one answer: lists, hedges and guesses earn nothing."""
    return verify(completion, answer, replace(MATH_LENIENT, answer_from=answer_from), truncated=truncated)


def gsm8k(
    completion: Completion, answer: Any, *, truncated: bool = False, answer_from: AnswerFrom = "anywhere"
) -> Verdict:
    """GSM8K: the gold is the number after `####`, or a number alone. `#### $18`, `#### 18.`, `\\boxed{18}`, "The answer
    is 18 dollars." and a last line such as `A: 18` all give 18. A percent sign may be left out or added."""
    return numeric(completion, answer, truncated=truncated, answer_from=answer_from, percent="either")


def svamp(
    completion: Completion, answer: Any, *, truncated: bool = False, answer_from: AnswerFrom = "anywhere"
) -> Verdict:
    """SVAMP and other word problems with plain numbers as gold answers (145.0): `gsm8k`, but a percent sign counts."""
    return numeric(completion, answer, truncated=truncated, answer_from=answer_from)


def aime(
    completion: Completion, answer: Any, *, truncated: bool = False, answer_from: AnswerFrom = "anywhere"
) -> Verdict:
    """AIME: integers from 0 to 999. Leading zeros do not count, neither in the gold (`025`) nor in the answer."""
    gold = gold_number(answer)
    if gold.percent or gold.value.denominator != 1 or not 0 <= gold.value <= AIME_LARGEST:
        raise DataError(
            given=f"the gold answer {answer!r} is not an AIME answer",
            allowed=f"an integer from 0 to {AIME_LARGEST}",
            fix='Correct or drop the row, or use the reward "numeric".',
        )
    return numeric(completion, answer, truncated=truncated, answer_from=answer_from)


def in_time(verifier: Callable[..., Verdict]) -> Callable[..., Verdict | None]:
    """A verifier for the training process. It returns None if it needs algebra or much time, which only a process that
    can be killed may use."""

    def quick(*arguments: Any, **settings: Any) -> Verdict | None:
        try:
            with quickly():
                return verifier(*arguments, **settings)
        except NeedsWorker:
            return None

    return quick
