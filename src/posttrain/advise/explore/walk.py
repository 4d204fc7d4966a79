"""The advisor's questions as a tree to walk through, grown from `advise` itself.

Every combination of answers is asked of the advisor. A question whose answers all lead to the same advice is left out
where that is so, and equal branches are kept once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a question."""

    key: str
    label: str
    facts: Mapping[str, Any]
    """What it says of the situation, in the words of `Facts`."""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, where the facts so far leave it open."""

    text: str
    answers: tuple[Answer, ...]
    asked: Callable[[Mapping[str, Any]], bool] = lambda facts: True


@dataclass
class Tree:
    """Nodes and advice, each kept once; a node is a question with a child for each answer, or advice."""

    questions: Sequence[Question]
    advise: Callable[[Mapping[str, Any]], Any]
    """Facts -> what is said, as JSON has it."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    advice: list[Any] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def grow(self, facts: Mapping[str, Any], after: int = 0) -> int:
        """The node at which one stands who has said this, and was asked the questions before `after`."""
        for place in range(after, len(self.questions)):
            question = self.questions[place]
            if question.asked(facts):
                children = [self.grow({**facts, **answer.facts}, place + 1) for answer in question.answers]
                if len(set(children)) == 1:
                    return children[0]
                return self._kept(self.nodes, {"question": place, "next": children})
        return self._kept(self.nodes, {"advice": self._kept(self.advice, self.advise(facts))})

    def _kept(self, where: list[Any], entry: Any) -> int:
        key = f"{where is self.nodes}{json.dumps(entry, sort_keys=True)}"
        if key not in self._known:
            self._known[key] = len(where)
            where.append(entry)
        return self._known[key]
