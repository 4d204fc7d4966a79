"""Does the same answer earn more if its text is longer or has more formatting?"""

from __future__ import annotations

import math
from itertools import product

from posttrain.rewards.audit.finding import Measured, mean
from posttrain.rewards.audit.subject import Case, Subject

_WHO = ("We", "Here we", "At this point we", "Next we", "Then we", "Once more we", "After that we", "Now we")
_DO = ("look at", "read", "think about", "go over", "come back to", "consider", "take up", "turn to")
_WHAT = ("the question", "what is given", "each part", "the statement", "what is asked", "the details")
SENTENCES = tuple(f"{who} {do} {what}." for what, do, who in product(_WHAT, _DO, _WHO))
"""384 different sentences without content and without numbers."""
BASE = 6
"""Number of sentences in the shortest text, which has about 200 characters."""
FACTORS = (2, 4, 8)


def length_slope(subject: Subject) -> Measured:
    """The largest change of the mean score for a text of 2, 4 or 8 times the length, in units of right minus wrong."""
    return _compared(subject, _plain(BASE), {f"{factor} times as long": _plain(BASE * factor) for factor in FACTORS})


def format_slope(subject: Subject) -> Measured:
    """The largest change of the mean score for Markdown: lists, headings and bold text around the same sentences."""
    texts = SENTENCES[:BASE]
    dressed = {
        "as a list": "\n".join(f"- {text}" for text in texts),
        "with headings": "\n".join(f"## Step\n{text}" for text in texts),
        "in bold": " ".join(f"**{text}**" for text in texts),
    }
    return _compared(subject, _plain(BASE), dressed)


def _plain(number: int) -> str:
    return " ".join(SENTENCES[:number])


def _compared(subject: Subject, base: str, variants: dict[str, str]) -> Measured:
    rows = subject.rows_for(2 * (len(variants) + 1))
    scores = {name: _means(subject, rows, text) for name, text in {"": base, **variants}.items()}
    plain = scores.pop("")
    changes = {
        f"{what} answers {name}": (after - before) / subject.scale
        for name, means in scores.items()
        for what, before, after in zip(("right", "wrong"), plain, means, strict=False)
    }
    changes = {name: change for name, change in changes.items() if not math.isnan(change)}
    if not changes:
        return Measured(text="no such completion was scored: see contract")
    worst = max(changes, key=lambda name: abs(changes[name]))
    declared = "" if subject.forms else "; if this is intended, set --kind length or --kind format"
    return Measured(
        value=abs(changes[worst]),
        text=f"{changes[worst]:+.3g} for {worst}" if changes[worst] else "no change",
        examples=tuple(f"{name}: {change:+.3g}{declared}" for name, change in changes.items() if change),
        at_most="fail" if subject.forms else "warn",
    )


def _means(subject: Subject, rows: range, text: str) -> list[float]:
    """The mean scores of right and of wrong answers after a text. Without readable answers, the text's mean score."""
    ends: list[list[str]] = [["This is all."] * len(rows)]
    if subject.forms:
        targets = [subject.target(row) for row in rows]
        ends = [[target.line(target.gold) for target in targets], [target.line(target.others[0]) for target in targets]]
    means = []
    for some in ends:
        answers = subject.score([Case(row=row, text=f"{text}\n{end}") for row, end in zip(rows, some, strict=True)])
        means.append(mean([answer.value for answer in answers if answer.value is not None]))
    return means
