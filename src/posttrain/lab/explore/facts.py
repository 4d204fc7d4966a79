"""What the page says of each algorithm, in words, from its class."""

from __future__ import annotations

import inspect
from typing import Any

from posttrain.algorithms import Algorithm
from posttrain.explain import NeedFact, explain, options_of_choices
from posttrain.lab.advise.guides import from_rewards, guides, samples
from posttrain.lab.explore.selections import settings_by_value, written

DATA = {
    "prompts": "prompts; completions are sampled during training",
    "examples": "prompts with the completions to imitate",
    "pairs": "prompts with a chosen and a rejected answer",
    "labels": "prompts with one answer each, labelled desirable or undesirable",
    "ratings": "prompts with one answer each, rated by a number",
    "steps": "prompts with one answer each in steps, each labelled right or wrong",
}
"""`data_kind` -> what a row has."""
REWARD = {
    "examples": "none: what is given is right",
    "pairs": "none: the pair says which answer is better",
    "labels": "none: the label says whether the answer is good",
}
"""`data_kind` of what is learned offline -> what takes the place of a reward."""
FAMILIES = {
    "prompts": "From its own answers",
    "pairs": "From pairs of answers",
    "labels": "From thumbs up or down",
    "examples": "From examples",
}
REWARD_MODELS = "To become a reward"
NEEDS = {
    "old": "old log-probabilities, where a batch is used for several updates",
    "old_for_advantages": "old log-probabilities, in every step",
    "current": "a pass before each update, to choose among its tokens",
    "current_entropy": "the entropy of each token before each update, to choose among its tokens",
    "reference": "log-probabilities of the reference",
    "entropy": "the entropy of each token",
    "values": "values of the critic",
    "teacher": "log-probabilities of the teacher",
    "squared_probs": "the sum of the squared probabilities at each token",
    "greedy_reward": "one greedy completion per prompt, and its reward",
    "reward_components": "each reward by itself",
    "signal": "other prompts in place of those without signal",
    "auxiliary": "a next-token loss on other data",
    "margins": "by how much the chosen answer is better",
    "scores": "a score instead of the next token",
    "standardized": "ratings in standard deviations",
    "unit_interval": "ratings between 0 and 1",
    "mismatched": "log-ratios of answers to other prompts",
}
"""Need -> what the machinery computes for it, beside the policy's own log-probabilities."""


def facts_of(kind: type[Algorithm]) -> dict[str, Any]:
    """One algorithm as the page shows it."""
    told, online = explain(kind.key), samples(kind)
    options = options_of_choices()
    return {
        "key": told.key,
        "name": told.title.partition(":")[0],
        "title": told.title,
        "paper": told.paper,
        "summary": told.summary,
        "online": online,
        "learns": "online: it samples its own answers" if online else "offline: nothing is sampled",
        "data": DATA[told.data_kind],
        "reward": reward_source(kind),
        "group": group_of(kind),
        "models": list(told.models),
        "needs": [_need(need) for need in told.needs],
        "choices": {name: [option, options.get(name, {}).get(option, "")] for name, option in told.choices.items()},
        "use_when": told.use_when,
        "avoid_when": told.avoid_when,
        "failures": [failure.what for failure in guides().failures if told.key in failure.of],
        "plan": {
            choice: {value: written(settings) for value, settings in values.items()}
            for choice, values in settings_by_value(kind).items()
        },
        "formula": inspect.cleandoc(f"\n{told.formula}"),
        "settings": [f"{setting.name} = {_value(setting.default)}" for setting in told.settings],
    }


def family_of(kind: type[Algorithm]) -> str:
    """The heading under which it can be chosen."""
    return REWARD_MODELS if "scores" in kind().needs else FAMILIES[kind.data_kind]


def reward_source(kind: type[Algorithm]) -> str:
    if "scores" in kind().needs:
        return "none: it is trained to give rewards"
    if not samples(kind):
        return REWARD[kind.data_kind]
    return "a verifier, a reward model, a judge or any function" if from_rewards(kind) else "none: a teacher model"


def group_of(kind: type[Algorithm]) -> str:
    least = kind().group_size_needed
    return "none are sampled" if not samples(kind) else "one is enough" if least == 1 else f"at least {least}"


def _need(need: NeedFact) -> str:
    switched = "" if need.by_default else f" (with {' or '.join(need.decided_by)})"
    return NEEDS[need.name] + switched


def _value(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
