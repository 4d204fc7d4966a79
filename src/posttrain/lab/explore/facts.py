"""What the page says of each algorithm, in words, from its card."""

from __future__ import annotations

import inspect
from typing import Any

from posttrain.lab.advise.cards import AlgorithmCard, options
from posttrain.lab.advise.guides import guides
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
    "reference": "log-probabilities of the reference",
    "entropy": "the entropy of each token",
    "values": "values of the critic",
    "teacher": "log-probabilities of the teacher",
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


def facts_of(card: AlgorithmCard) -> dict[str, Any]:
    """One algorithm as the page shows it."""
    return {
        "key": card.key,
        "name": card.title.partition(":")[0],
        "title": card.title,
        "paper": card.paper,
        "summary": card.summary,
        "online": card.online,
        "learns": "online: it samples its own answers" if card.online else "offline: nothing is sampled",
        "data": DATA[card.data_kind],
        "reward": reward_source(card),
        "group": group_of(card),
        "models": list(card.models),
        "needs": [
            _need(card, name) for name in card.needs if card.needs[name].by_default or card.needs[name].decided_by
        ],
        "choices": {name: _choice(name, option) for name, option in card.choices.items()},
        "use_when": card.use_when,
        "avoid_when": card.avoid_when,
        "failures": [failure.what for failure in guides().failures if card.key in failure.of],
        "plan": {
            choice: {value: written(settings) for value, settings in values.items()}
            for choice, values in settings_by_value(card).items()
        },
        "formula": inspect.cleandoc(f"\n{card.formula}"),
        "settings": [f"{setting.name} = {_value(setting.default)}" for setting in card.settings],
    }


def family_of(card: AlgorithmCard) -> str:
    """The heading under which it can be chosen."""
    return REWARD_MODELS if "scores" in card.needs else FAMILIES[card.data_kind]


def reward_source(card: AlgorithmCard) -> str:
    if "scores" in card.needs:
        return "none: it is trained to give rewards"
    if not card.online:
        return REWARD[card.data_kind]
    return (
        "a verifier, a reward model, a judge or any function" if card.learns_from_rewards else "none: a teacher model"
    )


def group_of(card: AlgorithmCard) -> str:
    if not card.online:
        return "none are sampled"
    return "one is enough" if card.min_group_size == 1 else f"at least {card.min_group_size}"


def _need(card: AlgorithmCard, name: str) -> str:
    need = card.needs[name]
    switched = "" if need.by_default else f" (with {' or '.join(need.decided_by)})"
    return NEEDS[name] + switched


def _choice(name: str, option: str) -> list[str]:
    """The option, and what it computes where that has not been said by its name."""
    return [option, options().get(name, {}).get(option, "")]


def _value(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
