"""The tables of `policy_gradient` for rewards before and after the baseline: shapings and normalisations (RULE 12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from posttrain.algorithms.composition.options import Normalisation, Shaping, Values
from posttrain.algorithms.gdpo import reward_components_of
from posttrain.algorithms.shared import STD_EPSILON
from posttrain.errors import ConfigError
from posttrain.functional.baselines import (
    batch_std,
    group_mean,
    group_std,
    nonzero_share,
    reaches,
    sum_of_normalised,
    whiten,
)
from posttrain.functional.shaping import (
    budget_penalty,
    clip_scores,
    kimi_length_reward,
    soft_overlong,
    without_eos_penalty,
)
from posttrain.types import Experience, Tensor

# Shapings: terms that are added to the rewards


def adding(bonus_PG: Callable[[Values, Experience], Tensor]) -> Callable[[Values, Experience], Experience]:
    return lambda p, x: replace(x, rewards_PG=x.rewards_PG + bonus_PG(p, x))


def overlong(p: Values, x: Experience) -> Experience:
    if not p["overlong_buffer"]:
        return x
    if p["max_completion_length"] is None:
        raise ConfigError(
            given="shaping = soft_overlong without max_completion_length",
            allowed="the length at which the penalty is complete, an integer >= 1",
            fix="Set max_completion_length. A run sets it from sampling.max_completion_length.",
        )
    penalty_PG = soft_overlong(x.lengths_PG, p["max_completion_length"], p["overlong_buffer"])
    return replace(x, rewards_PG=x.rewards_PG + penalty_PG)


def length_reward(p: Values, x: Experience) -> Tensor:
    correct_PG = reaches(x.total_rewards_PG, p["correct_at"])
    return p["length_coef"] * kimi_length_reward(x.lengths_PG, correct_PG, x.scored_PG)


def within_budget(p: Values, x: Experience) -> Experience:
    if p["token_budget"] is None:
        return x
    return replace(x, rewards_PG=x.rewards_PG + budget_penalty(x.lengths_PG, p["token_budget"], p["budget_penalty"]))


def scores(p: Values, x: Experience) -> Experience:
    total_PG, truncated_PG = x.total_rewards_PG, x.truncated_PG.to(x.rewards_PG.dtype)
    shaped_PG = clip_scores(total_PG + without_eos_penalty(truncated_PG, p["missing_eos_penalty"]), p["score_clip"])
    return replace(x, rewards_PG=x.rewards_PG + (shaped_PG - total_PG) if x.token_rewards_BT is not None else shaped_PG)


SHAPINGS = {
    "none": Shaping(),
    "soft_overlong": Shaping(
        shaped=overlong, reads={"overlong_buffer": None, "max_completion_length": None}, by_length=True
    ),
    "length": Shaping(shaped=adding(length_reward), reads={"length_coef": 1.0, "correct_at": 1.0}, by_length=True),
    "budget": Shaping(shaped=within_budget, reads={"token_budget": None, "budget_penalty": 1.0}, by_length=True),
    "score": Shaping(shaped=scores, reads={"score_clip": None, "missing_eos_penalty": 0.0}),
}

# Normalisations


def by_group(p: Values, x: Experience) -> Tensor:
    return group_std(x.total_rewards_PG, x.scored_PG, population=p["population"]) + p["std_epsilon"]


def by_batch(p: Values, x: Experience) -> Tensor:
    return batch_std(x.total_rewards_PG, x.scored_PG, population=p["population"]) + p["std_epsilon"]


def by_mean_reward(p: Values, x: Experience) -> Tensor:
    mean_P1 = group_mean(x.rewards_PG, x.scored_PG)
    if (mean_P1 < 0).any():
        raise ConfigError(
            given="normalisation = mean_reward, but some prompts have a negative mean reward",
            allowed="rewards of at least 0: the mean estimates the probability of solving the prompt",
            fix="Give wrong answers reward 0, or use normalisation = group_std.",
        )
    return mean_P1 + p["std_epsilon"]


def each_reward(p: Values, x: Experience) -> Tensor:
    rewards_KPG, weights_K = reward_components_of(x), x.reward_weights_K
    weights_K = rewards_KPG.new_ones(len(rewards_KPG)) if weights_K is None else weights_K
    return sum_of_normalised(rewards_KPG, weights_K, x.scored_PG, epsilon=p["std_epsilon"])


def whitened(p: Values, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    mean = "subtract" if p["center"] else "keep"
    return whiten(advantages_BT, mask_BT, over=p["whiten_over"], mean=mean, population=p["population"])


STD = {"std_epsilon": STD_EPSILON, "population": False}
NORMALISATIONS = {
    "none": Normalisation(),
    "group_std": Normalisation(scale=by_group, reads=STD, group=2),
    "mean_reward": Normalisation(scale=by_mean_reward, reads={"std_epsilon": STD_EPSILON}, group=2),
    "batch_std": Normalisation(scale=by_batch, reads=STD),
    "nonzero_share": Normalisation(scale=lambda p, x: nonzero_share(x.total_rewards_PG, x.scored_PG)),
    "per_reward": Normalisation(
        instead=each_reward, reads={"std_epsilon": STD_EPSILON}, needs=frozenset({"reward_components"}), group=2
    ),
    "whiten_tokens": Normalisation(
        after=whitened, reads={"whiten_over": "tokens", "center": True, "population": False}
    ),
}
