"""The questions about a group of answers, and the scores that the verdicts give.

pairwise    each answer against the others of its group, or against a column of the row: 1, 1/2 (tie) or 0.
            Both orders are asked. If the two verdicts disagree, the comparison is a tie.
score       points from 0 to 5, divided by 5; the mean of `samples` judgements
reference   1 if the answer means the same as a column of the row, else 0
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from posttrain.rewards.fuzzy import after_reasoning
from posttrain.rewards.judge.records import Conversation, Verdict
from posttrain.rewards.judge.substance import says_nothing
from posttrain.rewards.judge.templates import Template
from posttrain.rewards.judge.verdicts import POINTS, Parse, comparison, correctness, points

if TYPE_CHECKING:
    from posttrain.config import JudgeConfig
    from posttrain.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Task:
    """One score to find: for `completion`, alone or against `opponent`."""

    place: int
    """Index of the group among the judged groups."""
    completion: int
    opponent: int | None = None
    questions: tuple[Conversation, ...] = ()
    score: float | None = None
    """The score, if it is known without a question."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A judge's questions, and the scores that its replies give."""

    name: str
    template: Template
    settings: JudgeConfig

    @property
    def parse(self) -> Parse:
        return {"pairwise": comparison, "score": points, "reference": correctness}[self.name]

    def combine(self, verdicts: Sequence[Verdict | None]) -> float | None:
        """The score of a task; None if verdicts are missing. A comparison needs both verdicts, samples need one."""
        if self.name == "pairwise":
            first, second = verdicts
            if first is None or second is None:
                return None
            return {("A", "B"): 1.0, ("B", "A"): 0.0}.get((str(first), str(second)), 0.5)
        found = [float(verdict) for verdict in verdicts if verdict is not None]
        return math.fsum(found) / len(found) / POINTS if found else None

    def plan(self, place: int, prompt: Prompt, answers: Sequence[str], control: Collection[str]) -> list[Task]:
        """The tasks of one group. If there is none, the mode does not apply to this row."""
        asked, texts = request(prompt), [self.judged(answer) for answer in answers]
        fill = Filling(self.template, asked, control)
        if self.name == "pairwise" and self.settings.against is None:
            pairs = even_pairs(len(texts), self.settings.max_comparisons)
            return [self._compare(fill, place, texts[i], texts[j], i, j) for i, j in pairs]
        known = prompt.columns.get(self.settings.against or "answer")
        if self.name == "pairwise":
            if known is None:
                return []
            return [self._compare(fill, place, text, str(known), i, None) for i, text in enumerate(texts)]
        if self.name == "reference" and known is None:
            return []
        column = {"reference": str(known)} if self.name == "reference" else {}
        return [self._grade(fill, place, text, i, column) for i, text in enumerate(texts)]

    def _compare(self, fill: Filling, place: int, one: str, other: str, i: int, j: int | None) -> Task:
        score, note = decided(one, other)
        orders = () if note else (fill(first=one, second=other), fill(first=other, second=one))
        return Task(place=place, completion=i, opponent=j, questions=orders, score=score, note=note)

    def _grade(self, fill: Filling, place: int, text: str, i: int, column: dict[str, str]) -> Task:
        if note := says_nothing(text):
            return Task(place=place, completion=i, score=0.0, note=note)
        if column and text == column["reference"].strip():
            return Task(place=place, completion=i, score=1.0, note="the same as the reference")
        samples = tuple(fill(sample=n, completion=text, **column) for n in range(self.settings.samples))
        return Task(place=place, completion=i, questions=samples)

    def judged(self, answer: str) -> str:
        """The part of an answer that is judged."""
        return after_reasoning(answer) if self.settings.strip_reasoning else answer


@dataclass(frozen=True)
class Filling:
    """A template with the request filled in."""

    template: Template
    request: str
    control: Collection[str]

    def __call__(self, sample: int = 0, **texts: str) -> Conversation:
        question = self.template.fill(self.control, prompt=self.request, **texts)
        return Conversation(messages=({"role": "user", "content": question},), sample=sample)


def decided(one: str, other: str) -> tuple[float | None, str]:
    """The score of a comparison that needs no judge, and the reason. (None, "") if it needs a judge."""
    nothing = says_nothing(one), says_nothing(other)
    if all(nothing):
        return 0.5, "both answers say nothing"
    if any(nothing):
        return (0.0 if nothing[0] else 1.0), f"the {'first' if nothing[0] else 'second'} answer: {''.join(nothing)}"
    return (0.5, "the answers are the same") if one.strip() == other.strip() else (None, "")


def request(prompt: Prompt) -> str:
    """The request as text: the row's prompt, or its conversation turn by turn."""
    if prompt.plain is not None:
        return prompt.plain
    if prompt.messages is None:
        return prompt.text
    return "\n\n".join(f"{message['role']}: {_spoken(message.get('content'))}" for message in prompt.messages)


def _spoken(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)


@cache
def even_pairs(size: int, most: int | None) -> list[tuple[int, int]]:
    """All pairs of a group, or `most` of them, but at least half as many as members: each is in at least one pair, and
    all in about equally many.

    >>> even_pairs(3, None), even_pairs(4, 2), even_pairs(3, 1)
    ([(0, 1), (0, 2), (1, 2)], [(0, 3), (1, 2)], [(1, 2), (0, 2)])
    """
    if most is None or most >= size * (size - 1) // 2:
        return list(combinations(range(size), 2))
    counts, left, chosen = [0] * size, list(_tournament(size)), []
    for _ in range(max(most, -(-size // 2))):
        chosen.append(min(left, key=lambda pair: (counts[pair[0]] + counts[pair[1]], max(counts[m] for m in pair))))
        left.remove(chosen[-1])
        for member in chosen[-1]:
            counts[member] += 1
    return chosen


def _tournament(size: int) -> Iterator[tuple[int, int]]:
    """All pairs, in rounds in which everybody plays once."""
    circle = size - 1 + size % 2  # of an even size, the last member stands in the middle
    for turn in range(circle):
        for step in range(circle // 2 + 1):
            one, other = (turn + step) % circle, (turn - step) % circle if step else size - 1
            if step or size % 2 == 0:
                yield min(one, other), max(one, other)
