"""Which algorithm a project gets, and why."""

from __future__ import annotations

from typing import NamedTuple

from posttrain.advise.cards import card_of
from posttrain.init.questions import Answers

_FIRST = {"answers": "grpo", "function": "grpo", "pairs": "dpo", "thumbs": "kto", "demonstrations": "sft"}


class Recommendation(NamedTuple):
    algorithm: str
    reason: str


def recommend(answers: Answers) -> Recommendation:
    """The algorithm for what there is."""
    key = _FIRST[answers.data]
    return Recommendation(key, f"It suits when {card_of(key).use_when[0].lower()}{card_of(key).use_when[1:]}")
