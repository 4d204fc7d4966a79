"""The words in which an algorithm declares itself: its kind of data, what it needs computed, and its card."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from posttrain.functional.step_scores import Aggregate

DataKind = Literal["prompts", "examples", "pairs", "labels", "ratings", "steps"]
Need = Literal[
    "old",
    "old_for_advantages",
    "current",
    "current_entropy",
    "reference",
    "entropy",
    "values",
    "teacher",
    "squared_probs",
    "greedy_reward",
    "reward_components",
    "signal",
    "auxiliary",
    "margins",
    "scores",
    "standardized",
    "unit_interval",
    "mismatched",
]
"""The inputs that an algorithm may ask for, beside the policy's own log-probabilities."""

NEEDS: dict[Need, str] = {
    "old": "log-probabilities at the start of the update, as the anchor of a ratio; the pass is skipped when the batch "
    "is consumed in one update, where the policy is its own anchor",
    "old_for_advantages": "the same numbers before the first update: the pass always runs. Of the corrections only "
    "those ask for it that couple rows: m2po, normalize, rejected_in_denominator = false",
    "current": "log-probabilities right before each update, without gradient: for a choice among all its tokens",
    "current_entropy": "the entropy of each token right before each update, without gradient: for the same",
    "reference": "log-probabilities under the frozen reference model",
    "entropy": "the entropy of each token's distribution, with gradient",
    "values": "the critic's value before each token: without gradient for the advantages, with gradient in the loss",
    "teacher": "log-probabilities under the teacher model",
    "squared_probs": "the sum of the squared probabilities at each token before the first update: a second pass",
    "greedy_reward": "the reward of one greedy completion per prompt, sampled and scored beside the others",
    "reward_components": "each reward function by itself, beside the weighted sum",
    "signal": "groups whose rewards differ: prompts without signal are replaced by others until the step is full",
    "auxiliary": "a next-token loss on other data, added to each update",
    "margins": "by how much the chosen answer of each pair is better, from the data",
    "scores": "a score of each row, or of each step: the model has a scalar head instead of its next-token head",
    "standardized": "ratings as distances from the mean of the training data, in its standard deviations; the model's "
    "folder keeps both, so that its scores come out in the units of the data",
    "unit_interval": "ratings from 0 to 1: the score is a logit, and what comes out is its sigmoid",
    "mismatched": "log(policy / reference) of another row's answer to each prompt, without gradient, right before each "
    "update: for a reference point that does not depend on the labels",
}


CHOICES = (
    "baseline", "normalisation", "ratio", "trust_region", "kl", "aggregation", "correction", "filter", "shaping",
)  # fmt: skip
"""The choices of a policy-gradient method, with the names and values of `policy_gradient`."""


def row(names: str) -> dict[str, str]:
    """The nine choices of a policy-gradient method by name, in the order of `CHOICES`."""
    return dict(zip(CHOICES, names.split(), strict=True))


class StepReading(NamedTuple):
    """How an answer is cut into steps, and what their scores come to."""

    separator: str
    """Behind each step."""
    aggregate: Aggregate


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts about an algorithm that documentation, `explain`, advisor and planner read."""

    title: str
    paper: str
    summary: str
    """One sentence: the idea."""
    choices: dict[str, str]
    """The `row` of a policy-gradient method, or the choices of a preference loss in words."""
    use_when: str
    avoid_when: str
    differs: tuple[str, ...] = ()
    """Where we differ from the paper and from TRL, verl and OpenRLHF."""
    sources: dict[str, str] = field(default_factory=dict)
    """Setting -> where its default comes from."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Metric -> formula, beside those that its base logs (`shared_metrics`) and every run."""


class FromFile:
    """Stands for the card of a class that holds none itself: the one in cards.yaml under its key, or under that of the
    nearest class that it derives from."""

    def __get__(self, instance: object, owner: Any) -> Card:
        key = next((cls.key for cls in owner.__mro__ if getattr(cls, "key", None) in told_in("cards")), None)
        if key is None:
            raise AttributeError(f"{owner.__name__} has no card: write card = Card(...) in the class")
        return card(key, owner.metrics, owner.choices)


def card(key: str, metrics: dict[str, str], choices: dict[str, str] | None = None) -> Card:
    """The card from cards.yaml, merged with the card of the class itself."""
    told = dict(told_in("cards")[key])
    chosen = choices or told["choices"]
    differs = (biased(*line["biased"]) if isinstance(line, dict) else line for line in told.pop("differs", ()))
    told["choices"] = row(chosen) if isinstance(chosen, str) else chosen
    return Card(**told, differs=tuple(differs), metrics=metrics)


@functools.cache
def told_in(name: str) -> dict[str, dict[str, Any]]:
    """The content of cards.yaml or options.yaml."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def biased(pairs: float, triples: float, of: str = "expected reward") -> str:
    """The sentence of `differs` that states a bias, in figures that are computed by enumerating every completion."""
    return (
        "Biased: averaged over every pair of completions of a small policy, an on-policy step has a cosine of "
        f"{pairs:.3f} to the true gradient of {of}, over every triple of a smaller one {triples:.3f}."
    )
