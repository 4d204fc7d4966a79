"""The few questions that decide most: asked one after the other, each only where its answer can change something.

What to ask is data, too; an empty answer skips a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.errors import ConfigError
from posttrain.lab.advise.conditions import Condition, met
from posttrain.lab.advise.facts import GIGABYTE, Facts
from posttrain.lab.plan.hardware import find_hardware

Ask = Callable[[str], str]
"""Shows a question and returns the line that was typed; raises EOFError when there is no more."""


def yes_or_no(text: str) -> bool:
    """`yes`, `y`, `true` and `1`, or `no`, `n`, `false` and `0`.

    >>> yes_or_no("Y"), yes_or_no("no")
    (True, False)
    """
    known = {"yes": True, "y": True, "true": True, "1": True, "no": False, "n": False, "false": False, "0": False}
    if (answer := known.get(text.strip().lower())) is None:
        raise ConfigError(given=f"{text!r}", allowed="yes or no", fix="Or press Enter, where it is not known.")
    return answer


def machine(text: str) -> dict[str, Any]:
    """`8xH100`, `8x80` (GPUs of so many gigabytes), `8`, or `cpu`, as facts.

    >>> machine("8x80"), machine("4090x8"), machine("cpu")
    ({'gpus': 8, 'gpu_memory': 80.0}, {'gpus': 8, 'gpu_memory': 24.0}, {'gpus': 0})
    """
    number, _, each = text.strip().lower().partition("x")
    number = "" if len(number.strip()) > 3 else number  # 4090x8 is eight of a name
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
    """One question, and how its answer becomes facts."""

    asks: str
    fact: str
    """That it is about: what is known of it already is not asked."""
    read: Callable[[str], Any] = str
    """Of the line that was typed: the value of the fact, or several facts by their names."""
    when: Condition = field(default_factory=dict)


QUESTIONS = (
    Question(
        asks="What says that an answer is good? verifier, pairs, thumbs, ratings, steps, demonstrations, nothing\n"
        "(a program checks it; one of two was preferred; up or down; a number; right or wrong steps; answers to\n"
        "imitate); several with commas",
        fact="data",
    ),
    Question(
        asks="Is the verifier always right? yes, or no: it is wrong at times",
        fact="reward",
        read=lambda text: "exact" if yes_or_no(text) else "noisy",
        when={"data": "verifier"},
    ),
    Question(
        asks="Can new answers be scored otherwise? judge (a language model), model (a trained reward model)",
        fact="reward",
        when={"data": {"not": "verifier"}},
    ),
    Question(
        asks="Can the model be sampled from while it trains? yes or no",
        fact="online",
        read=yes_or_no,
        when={"data": ["verifier", "pairs", "ratings"]},
    ),
    Question(asks="What is to get better? reasoning, style, format, chat, or a scorer itself", fact="goal"),
    Question(asks="How large is the model? 0.6b, 7b, 30b ...", fact="size"),
    Question(asks="Is it a mixture of experts? yes or no", fact="moe", read=yes_or_no),
    Question(asks="Which machine? 8xH100, 8x80 (eight GPUs of 80 GB), cpu", fact="gpus", read=machine),
    Question(asks="What matters most? quality, memory, speed, stability; several with commas", fact="priority"),
    Question(
        asks="Was the model fine-tuned on instructions already? yes or no",
        fact="sft_done",
        read=yes_or_no,
        when={"data": ["pairs", "thumbs"]},
    ),
    Question(
        asks="Which share of its answers is right now? 0.3 or 30%",
        fact="base_score",
        when={"data": "verifier"},
    ),
)


def ask_for(facts: Facts, ask: Ask, complain: Callable[[str], None]) -> Facts:
    """The facts with what was answered; a wrong answer is explained and asked again. The end of the input ends it."""
    for question in QUESTIONS:
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
