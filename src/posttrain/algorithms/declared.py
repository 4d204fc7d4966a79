"""The declarations of an algorithm: its kind of data, the inputs that it needs, and its card."""

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
"""The inputs that an algorithm may need, in addition to the policy's own log-probabilities."""

NEEDS: dict[Need, str] = {
    "old": "log-probabilities at the start of the update, as the anchor of a ratio; the pass is skipped if the batch "
    "is consumed in one update, because the policy is then its own anchor",
    "old_for_advantages": "the same numbers before the first update; this pass always runs. The only corrections that "
    "need it are those that couple rows: m2po, normalize, rejected_in_denominator = false",
    "current": "log-probabilities right before each update, without gradient, for a choice among all tokens of the "
    "update",
    "current_entropy": "the entropy of each token right before each update, without gradient, for such a choice",
    "reference": "log-probabilities under the frozen reference model",
    "entropy": "the entropy of each token's distribution, with gradient",
    "values": "the critic's value before each token, without gradient for the advantages and with gradient in the loss",
    "teacher": "log-probabilities under the teacher model",
    "squared_probs": "the sum over the vocabulary of the squared probabilities at each token, before the first update; "
    "this takes a second pass",
    "greedy_reward": "the reward of one greedy completion per prompt, sampled and scored in addition to the others",
    "reward_components": "the reward of each reward function, in addition to their weighted sum",
    "signal": "groups whose rewards differ; prompts without signal are replaced by others until the step is full",
    "auxiliary": "a next-token loss on other data, added to each update",
    "margins": "the margin by which the chosen answer of each pair is better, read from the data",
    "scores": "a score of each row, or of each step: the model has a scalar head instead of its next-token head",
    "standardized": "ratings as distances from the mean of the training data, in its standard deviations; the model's "
    "folder keeps both, so that its scores are in the units of the data",
    "unit_interval": "ratings from 0 to 1; the model computes a logit, and the score is its sigmoid",
    "mismatched": "log(policy / reference) of another row's answer to each prompt, without gradient, right before each "
    "update, for a reference point that does not depend on the labels",
}


CHOICES = (
    "baseline", "normalisation", "ratio", "trust_region", "kl", "aggregation", "correction", "filter", "shaping",
)  # fmt: skip
"""The choices of a policy-gradient method, with the names and values of `policy_gradient`."""


def row(names: str) -> dict[str, str]:
    """Return the nine choices of a policy-gradient method by name, from values in the order of `CHOICES`."""
    return dict(zip(CHOICES, names.split(), strict=True))


class StepReading(NamedTuple):
    """The rule that splits an answer into steps and combines the scores of the steps."""

    separator: str
    """Text that ends each step."""
    aggregate: Aggregate
    """The operation that makes one score from the scores of the steps."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts about an algorithm that documentation, `explain`, advisor and planner read."""

    title: str
    paper: str
    summary: str
    """The idea, in one sentence."""
    choices: dict[str, str]
    """The `row` of a policy-gradient method, or a description of the choices of a preference loss."""
    use_when: str
    avoid_when: str
    differs: tuple[str, ...] = ()
    """Differences from the paper and from TRL, verl and OpenRLHF, one sentence each."""
    sources: dict[str, str] = field(default_factory=dict)
    """Setting -> source of its default."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Metric -> formula, without the metrics of the base class (`shared_metrics`) and of every run."""


class FromFile:
    """Descriptor that reads the card of a class from cards.yaml, by the key of the class or of its nearest base class
    that has an entry."""

    def __get__(self, instance: object, owner: Any) -> Card:
        key = next((cls.key for cls in owner.__mro__ if getattr(cls, "key", None) in told_in("cards")), None)
        if key is None:
            raise AttributeError(f"{owner.__name__} has no card: write card = Card(...) in the class")
        return card(key, owner.metrics, owner.choices)


def card(key: str, metrics: dict[str, str], choices: dict[str, str] | None = None) -> Card:
    """Return the card of `key` in cards.yaml, with the metrics and choices that the class itself declares."""
    told = dict(told_in("cards")[key])
    chosen = choices or told["choices"]
    differs = (biased(*line["biased"]) if isinstance(line, dict) else line for line in told.pop("differs", ()))
    told["choices"] = row(chosen) if isinstance(chosen, str) else chosen
    return Card(**told, differs=tuple(differs), metrics=metrics)


@functools.cache
def told_in(name: str) -> dict[str, dict[str, Any]]:
    """Return the content of cards.yaml or options.yaml."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def biased(pairs: float, triples: float, of: str = "expected reward") -> str:
    """Return the sentence of `differs` that states a bias. Its figures are computed by enumerating every completion."""
    return (
        "Biased: averaged over every pair of completions of a small policy, an on-policy step has a cosine of "
        f"{pairs:.3f} to the true gradient of {of}, over every triple of a smaller one {triples:.3f}."
    )
