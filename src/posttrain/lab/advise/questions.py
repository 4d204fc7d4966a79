"""The questions that matter most, asked one after the other, each only if its answer can change the advice.

`questions.yaml` holds the questions. An empty answer skips a question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.lab.advise.facts import GIGABYTE, Facts
from posttrain.lab.advise.guides import Condition, met
from posttrain.lab.plan.hardware import find_hardware
from posttrain.verify import read_table

Ask = Callable[[str], str]
"""A function that shows a question and returns the typed line. It raises EOFError at the end of the input."""


def yes_or_no(text: str) -> bool:
    """Parse `yes`, `y`, `true` and `1`, or `no`, `n`, `false` and `0`.

    >>> yes_or_no("Y"), yes_or_no("no")
    (True, False)
    """
    known = {"yes": True, "y": True, "true": True, "1": True, "no": False, "n": False, "false": False, "0": False}
    if (answer := known.get(text.strip().lower())) is None:
        raise ConfigError(given=f"{text!r}", allowed="yes or no", fix="Press Enter if you do not know.")
    return answer


def machine(text: str) -> dict[str, Any]:
    """Parse `8xH100`, `8x80` (eight GPUs with 80 GB each), `8`, or `cpu` into facts.

    >>> machine("8x80"), machine("4090x8"), machine("cpu")
    ({'gpus': 8, 'gpu_memory': 80.0}, {'gpus': 8, 'gpu_memory': 24.0}, {'gpus': 0})
    """
    number, _, each = text.strip().lower().partition("x")
    number = "" if len(number.strip()) > 3 else number  # 4090x8 is eight GPUs named 4090
    if text.strip().lower() in ("cpu", "none", "0"):
        return {"gpus": 0}
    if text.strip().isdecimal():
        return {"gpus": int(text)}
    if number.strip().isdecimal() and each.strip().removesuffix("gb").strip().replace(".", "", 1).isdecimal():
        return {"gpus": int(number), "gpu_memory": float(each.strip().removesuffix("gb"))}
    found = find_hardware(text)
    return {"gpus": found.count, "gpu_memory": round(found.device.memory / GIGABYTE, 1)}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, and how its answer becomes facts."""

    asks: str
    fact: str
    """The fact that the question is about. If the fact is already known, the question is skipped."""
    read: Callable[[str], Any] = str
    """Parses a typed line into the value of the fact, or into a mapping with several facts."""
    when: Condition = field(default_factory=dict)


def _exact_or_noisy(text: str) -> str:
    return "exact" if yes_or_no(text) else "noisy"


_READ: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "yes_or_no": yes_or_no,
    "machine": machine,
    "exact_or_noisy": _exact_or_noisy,
}


@functools.cache
def questions() -> tuple[Question, ...]:
    """Read the questions from questions.yaml."""
    told = read_table(Path(__file__).with_name("questions.yaml"))
    return tuple(Question(**{**entry, "read": _READ[entry.get("read", "text")]}) for entry in told)


def ask_for(facts: Facts, ask: Ask, complain: Callable[[str], None]) -> Facts:
    """Ask and return the facts with the answers. An invalid answer is explained and asked again; end of input stops."""
    for question in questions():
        if met(question.when, facts.known()) and met({question.fact: "unknown"}, facts.known()):
            try:
                facts = _answered(facts, question, ask, complain)
            except EOFError:
                break
    return facts


def _answered(facts: Facts, question: Question, ask: Ask, complain: Callable[[str], None]) -> Facts:
    while text := ask(f"{question.asks}\n> ").strip():
        try:
            answer = question.read(text)
            given = dict(answer) if isinstance(answer, Mapping) else {question.fact: answer}
            return Facts(**(facts.model_dump(exclude_none=True) | given))
        except ConfigError as error:
            complain(str(error))
    return facts
