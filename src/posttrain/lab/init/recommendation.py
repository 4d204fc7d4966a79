"""What a project gets, and why: the advisor's first recommendation for what was answered, with its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from posttrain.lab.advise.advisor import advise
from posttrain.lab.init.questions import Answers

_MACHINES: Mapping[str, Mapping[str, Any]] = {"cpu": {"gpus": 0}, "gpu": {"gpus": 1}, "auto": {}}
_GIVEN = ("pairs", "thumbs", "demonstrations")
"""Data that is learned from as it is, with nothing sampled."""
ANSWER_LENGTH = 256
"""Tokens of an answer to the sample's prompts."""
_REASONS = 2
"""As many are told; `posttrain advise` has them all."""


class Recommendation(NamedTuple):
    algorithm: str
    settings: Mapping[str, Any]
    """That its rules give beside the defaults."""
    reason: str
    config: Mapping[str, Any]
    """The one that comes with it: sizes, learning rate, adapters or none."""


def recommend(answers: Answers) -> Recommendation:
    """The algorithm for what there is."""
    facts: dict[str, Any] = {"data": answers.data, "answer_length": ANSWER_LENGTH, **_MACHINES[answers.where]}
    facts |= {"online": False} if answers.data in _GIVEN else {}
    facts |= {} if answers.goal == "balance" else {"priority": answers.goal}
    facts |= {} if answers.tiny else {"model": answers.model}
    best = advise(facts).best
    assert best is not None, "there is something to learn from in every answer"
    why = "; ".join(reason.text for reason in best.reasons[:_REASONS])
    return Recommendation(best.algorithm, best.settings, f"{why[0].upper()}{why[1:]}.", yaml.safe_load(best.config))
