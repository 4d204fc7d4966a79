"""Does the reward keep the contract: one finite number per completion, and an error for a row that it cannot judge?"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from posttrain.rewards.audit.finding import Measured, quote
from posttrain.rewards.audit.renderings import WORK
from posttrain.rewards.audit.subject import Answer, Case, Subject

SIZES = (1, 2, 3, 7)
"""Sizes of the batches to try, in completions."""
PLAIN_TEXTS = (
    "",
    " ",
    "7",
    "a",
    WORK,
    "\\boxed{}",
    "é ü 漢字 🙂",
    "x" * 10_000,
    "{}",
    "null",
    "#### ",
    "<answer></answer>",
)
"""Ordinary completions."""
MALFORMED: dict[str, Any] = {
    "None": None,
    "empty": "",
    "blank": "  ",
    "nan": math.nan,
    "a list": ["7", "8"],
    "a mapping": {"value": 7},
    "bytes, as they arrive": [55, 50],
}
"""Gold answers that can only be errors."""
ODD: dict[str, str] = {"1 MB of digits": "7" * (1 << 20), "a lone surrogate": "7\ud800", "a zero byte": "\x00"}
"""Gold answers that a reward may compare, but that no completion below states."""
ANSWERS = ("7", "None", "nan", "", "8")


def contract(subject: Subject) -> Measured:
    """Number of answers that broke the contract, over all completions so far that a model could have given."""
    rows = range(min(8, len(subject.prompts)))
    texts = [*PLAIN_TEXTS, *(subject.right(row) for row in rows if subject.forms)]
    subject.score([Case(row=row, text=text) for row in rows for text in texts])
    problems = [answer for answer in subject.seen if answer.problem] + _wrong_lengths(subject)
    values = [answer.value for answer in subject.seen if answer.value is not None]
    absent = sum(answer.value is None and not answer.problem for answer in subject.seen)
    kinds = Counter(f"{answer.kind}: {answer.problem}" for answer in problems)
    span = f"scores from {min(values):g} to {max(values):g}" if values else "no score at all"
    none = f", None for {absent}" if absent else ""
    broken = f"; {len(problems)} results are not scores" if problems else ""
    return Measured(
        value=len(problems) if values or not absent else math.inf,
        text=f"{len(subject.seen)} completions, {span}{none}{broken}",
        examples=tuple(f"{count} times {problem}" for problem, count in kinds.most_common(4)),
    )


def malformed_rows(subject: Subject) -> Measured:
    """Number of malformed gold answers for which a completion got a score instead of an error."""
    if subject.component.judge is not None or subject.component.model is not None:
        return Measured(text="a model that scores has no gold answer to reject")
    if "answer" not in subject.component.columns({"answer", *subject.prompts[0].columns}):
        return Measured(text="it does not take the column `answer`")
    tried: list[tuple[str, Case]] = [
        (f"the gold is {name}", Case(row=0, text=_stated(subject, text), columns={"answer": gold}))
        for name, gold in (MALFORMED | ODD).items()
        for text in ANSWERS
    ]
    if not subject.component.signature.batch:
        tried += [("the column is missing", Case(row=0, text=_stated(subject, "7"), without=("answer",)))]
    answers = [subject.score([case], watch=False)[0] for _, case in tried]
    wrong: dict[str, str] = {}
    for (name, case), answer in zip(tried, answers, strict=True):
        if _gives(answer, name, subject) and name not in wrong:
            wrong[name] = (
                f"{name}: {quote(case.text.removeprefix(WORK), 40)} got {answer.value:g}"
                if answer.value is not None
                else name
            )
    return Measured(
        value=len(wrong),
        text=f"{len(wrong)} of {len(MALFORMED) + len(ODD) + 1} kinds of broken rows are scored instead of refused",
        examples=tuple(wrong.values()),
    )


def _gives(answer: Answer, name: str, subject: Subject) -> bool:
    """Did the reward give a score for a malformed gold answer, or a high score for an odd text that nothing states?"""
    odd = any(name.endswith(text) for text in ODD)
    return subject.accepts(answer) if odd else answer.value is not None


def _stated(subject: Subject, text: str) -> str:
    return subject.target(0).says(text) if subject.forms else text


def _wrong_lengths(subject: Subject) -> list[Answer]:
    """The answers to batches of several sizes that returned a wrong number of values."""
    if not subject.component.signature.batch:
        return []
    found = []
    for size in SIZES:
        outcome = subject.batch([Case(row=row, text=PLAIN_TEXTS[row]) for row in range(size)])
        values = outcome.value if isinstance(outcome.value, list) else None
        if outcome.kind == "value" and (values is None or len(values) != size):
            got = "one number" if values is None else f"{len(values)} values"
            found.append(Answer(value=None, problem=f"{got} for {size} completions", kind="invalid"))
    return found
