"""The questions of the walk, read from `questions.yaml`. Each answer is facts for the advisor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posttrain.lab.advise.conditions import Condition, met
from posttrain.lab.advise.facts import Facts

FILE = Path(__file__).with_name("questions.yaml")
Given = Mapping[str, Any]
"""Facts so far, by the names of `Facts`."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a question."""

    key: str
    label: str
    hint: str = ""
    facts: Given


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked where `when` is met by the facts so far."""

    text: str
    when: Condition
    answers: tuple[Answer, ...]

    def asked(self, given: Given) -> bool:
        return met(self.when, Facts(**given).known())


@functools.cache
def questions() -> tuple[Question, ...]:
    """All of them, in their order."""
    return tuple(_question(told) for told in yaml.safe_load(FILE.read_text(encoding="utf-8")))


def _question(told: Mapping[str, Any]) -> Question:
    answers = tuple(Answer(key=key, **{"facts": {}, **answer}) for key, answer in told["answers"].items())
    return Question(text=told["text"], when=told.get("when", {}), answers=answers)
