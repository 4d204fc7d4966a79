"""A tree of the questions in `questions.yaml`, whose answers are facts for the advisor.

The advisor is called for every combination of answers. A question is skipped if all its answers lead to the same
advice. Equal branches and equal advice are stored once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.lab.advise.advisor import RECOMMENDED, Standing, rank
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.guides import Condition, Entry, guides, met
from posttrain.verify import read_table

FILE = Path(__file__).with_name("questions.yaml")
Given = Mapping[str, Any]
"""The facts so far, under the field names of `Facts`."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a question."""

    key: str
    label: str
    hint: str = ""
    facts: Given


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, asked if the facts so far meet `when`."""

    text: str
    when: Condition
    answers: tuple[Answer, ...]

    def asked(self, given: Given) -> bool:
        return met(self.when, Facts(**given).known())


@functools.cache
def questions() -> tuple[Question, ...]:
    """Return all questions, in order."""
    return tuple(_question(told) for told in read_table(FILE))


def _question(told: Mapping[str, Any]) -> Question:
    answers = tuple(Answer(key=key, **{"facts": {}, **answer}) for key, answer in told["answers"].items())
    return Question(text=told["text"], when=told.get("when", {}), answers=answers)


@dataclass
class Walk:
    """Nodes, advice and texts, without duplicates. A node is a question with a child per answer, or advice."""

    questions: Sequence[Question] = field(default_factory=questions)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    advice: list[dict[str, Any]] = field(default_factory=list)
    standings: list[dict[str, Any]] = field(default_factory=list)
    """Algorithms with the reasons for and against them, for some combination of answers."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """(text, its sources)."""
    _places: dict[str, int] = field(default_factory=dict)

    def grow(self, given: Given, after: int = 0) -> int:
        """Return the node for these facts, after the questions before index `after`."""
        for place in range(after, len(self.questions)):
            question = self.questions[place]
            if question.asked(given):
                children = [self.grow({**given, **answer.facts}, place + 1) for answer in question.answers]
                if len(set(children)) == 1:
                    return children[0]
                return self._once(self.nodes, {"question": place, "next": children})
        return self._once(self.nodes, {"advice": self._once(self.advice, self._say(given))})

    def to_json(self) -> dict[str, Any]:
        """Return the tree and its root, with the texts of the questions."""
        return {
            "root": self.grow({}),
            "questions": [_asked(question) for question in self.questions],
            **{name: getattr(self, name) for name in ("nodes", "advice", "standings", "texts")},
        }

    def _say(self, given: Given) -> dict[str, Any]:
        """Return the advice for these facts: the first recommendations with their reasons, and the first steps."""
        facts, _ = Facts(**given).assumed()
        known, said = facts.known(), guides()
        possible = [standing for standing in rank(facts) if standing.possible]
        return {
            "ranked": [self._ranked(standing) for standing in possible[:RECOMMENDED]],
            "before": self._cited(said.before, known),
            "contradictions": self._cited(said.contradictions, known),
        }

    def _ranked(self, standing: Standing) -> int:
        told = {
            "key": standing.algorithm,
            "for": [self._text(reason.text, reason.sources) for reason in standing.speaks_for],
            "against": [self._text(reason.text, reason.sources) for reason in standing.speaks_against],
        }
        return self._once(self.standings, told)

    def _cited(self, entries: Iterable[Entry], known: Mapping[str, Any]) -> list[int]:
        return [self._text(one.text, guides().cited(one.source)) for one in entries if met(one.when, known)]

    def _text(self, text: str, sources: Iterable[str]) -> int:
        return self._once(self.texts, (text, "; ".join(sources)))

    def _once(self, where: list[Any], entry: Any) -> int:
        key = f"{id(where)} {json.dumps(entry)}"
        if key not in self._places:
            self._places[key] = len(where)
            where.append(entry)
        return self._places[key]


def _asked(question: Question) -> dict[str, Any]:
    answers = [{"key": a.key, "label": a.label, "hint": a.hint, "flags": flags(a.facts)} for a in question.answers]
    return {"text": question.text, "answers": answers}


def flags(facts: Given) -> str:
    """Format the facts as flags of `posttrain advise`.

    >>> flags({"data": "verifier", "sft_done": False})
    '--data verifier --no-sft-done'
    """
    return " ".join(_flag(name.replace("_", "-"), value) for name, value in facts.items())


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"
