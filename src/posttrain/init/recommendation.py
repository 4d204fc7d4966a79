"""Which algorithm a project gets, and why: the advisor's first, for what was answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from posttrain.advise.advisor import advise
from posttrain.advise.ranges import facts_of, usual_values
from posttrain.config import RunConfig
from posttrain.init.questions import Answers

_FACTS: Mapping[str, Mapping[str, Any]] = {
    "answers": {"data": "verifier", "reward": "exact"},
    "function": {"data": "nothing", "reward": "noisy"},
    "pairs": {"data": "pairs", "online": False},
    "thumbs": {"data": "thumbs", "online": False},
    "demonstrations": {"data": "demonstrations", "online": False},
}
"""What an answer to the first question means to the advisor."""
_REASONS = 2
"""As many are told; `posttrain advise` has them all."""


class Recommendation(NamedTuple):
    algorithm: str
    settings: Mapping[str, Any]
    """That its rules give beside the defaults."""
    reason: str


def recommend(answers: Answers) -> Recommendation:
    """The algorithm for what there is."""
    machine = {"cpu": {"gpus": 0}, "gpu": {"gpus": 1}, "auto": {}}[answers.where]
    wish = {} if answers.goal == "balance" else {"priority": answers.goal}
    best = advise({**_FACTS[answers.data], **machine, **wish}).best
    assert best is not None, "there is something to learn from in every answer"
    why = "; ".join(reason.text for reason in best.reasons[:_REASONS])
    return Recommendation(best.algorithm, best.settings, f"{why[0].upper()}{why[1:]}.")


def usual_rate(config: RunConfig) -> float:
    """The learning rate that was published for runs like this one; that of the config where none was."""
    found = usual_values(facts_of(config)).get("train.learning_rate")
    return config.train.learning_rate if found is None or found.usual is None else float(found.usual)
