"""The tables of `policy_gradient` from rewards to advantages: shapings, baselines and normalisations (RULE 10-12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from posttrain.algorithms.composition.options import Baseline, Normalisation, Scored, Shaping, Values
from posttrain.algorithms.critic import old_values
from posttrain.algorithms.gdpo import reward_components_of
from posttrain.algorithms.reinforce import MovingAverage
from posttrain.algorithms.remax import greedy_rewards_of, with_baseline
from posttrain.algorithms.returns import teacher_log_ratio
from posttrain.algorithms.shared import STD_EPSILON
from posttrain.errors import ConfigError
from posttrain.functional.baselines import (
    batch_mean,
    batch_std,
    group_mean,
    group_std,
    has_signal,
    leave_one_out_mean,
    length_weighted_mean,
    nonzero_share,
    optimal_token_baseline,
    pass_at_k_advantages,
    reaches,
    return_to_go,
    runner_up,
    sum_of_normalised,
    whiten,
)
from posttrain.functional.gae import gae
from posttrain.functional.masks import masked
from posttrain.functional.shaping import (
    budget_penalty,
    clip_scores,
    kimi_length_reward,
    soft_overlong,
    without_eos_penalty,
)
from posttrain.types import Batch, Experience, Tensor


def compared_with(baseline: Callable[[Scored], Tensor | float]) -> Callable[[Scored], Tensor]:
    """The discounted return from each token on, minus a baseline: `[P, G]`, `[P, 1]` or a scalar."""

    def advantages(s: Scored) -> Tensor:
        mask_BT, zero_PG = s.experience.scored_mask_BT, torch.zeros_like(s.experience.rewards_PG)
        returns_BT = return_to_go(s.rewards_BT, mask_BT, s.values["gamma"])
        baseline_B1, scale_B1 = ((x + zero_PG).reshape(-1, 1) for x in (baseline(s), s.scale_PG))
        return s.with_penalties(masked((returns_BT - baseline_B1) / scale_B1, mask_BT))

    return advantages


def within_group(baseline_PG: Callable[[Tensor, Tensor, Experience], Tensor]) -> Callable[[Scored], Tensor]:
    """The reward of the completion minus a baseline of its prompt; exactly 0 in a group of equal rewards (RULE 11)."""

    def advantages(s: Scored) -> Tensor:
        rewards_PG, scored_PG = s.experience.rewards_PG, s.experience.scored_PG
        compared_PG = rewards_PG - baseline_PG(rewards_PG, scored_PG, s.experience)
        return s.per_completion(masked(compared_PG, scored_PG & has_signal(rewards_PG, scored_PG)))

    return advantages


def moving_average(s: Scored) -> float:
    return s.state.mean if isinstance(s.state, MovingAverage) else 0.0


def batch_mean_of(s: Scored) -> Tensor:
    return batch_mean(s.experience.rewards_PG, s.experience.scored_PG)


def pass_at_k(s: Scored) -> Tensor:
    rewards_PG, scored_PG = s.experience.rewards_PG, s.experience.scored_PG
    correct_PG = reaches(rewards_PG, s.values["correct_at"])
    return s.per_completion(pass_at_k_advantages(correct_PG, scored_PG, s.values["k"]).to(rewards_PG.dtype))


def constant(s: Scored) -> Tensor:
    return s.per_completion(s.experience.rewards_PG - s.values["constant"])


def teacher(s: Scored) -> Tensor:
    return s.values["coef"] * teacher_log_ratio(s.experience, s.values["floor"])


def optimal_token(s: Scored) -> Tensor:
    """The discounted return from each token on, minus its own baseline; 0 in a group of equal rewards (RULE 11)."""
    experience, mask_BT = s.experience, s.experience.scored_mask_BT
    old_BT, squared_BT = experience.old_logprobs_BT, experience.squared_probs_BT
    if old_BT is None or squared_BT is None:
        raise ConfigError(
            given="baseline = optimal_token, but old log-probabilities or squared probabilities are missing",
            allowed="old_logprobs_BT and squared_probs_BT, the sum over the vocabulary of p^2",
            fix="Pass both, or set baseline = group_mean.",
        )
    returns_BT = return_to_go(s.rewards_BT, mask_BT, s.values["gamma"])
    baseline_BT = optimal_token_baseline(returns_BT, old_BT, squared_BT, mask_BT, experience.group_size)
    if experience.token_rewards_BT is None:
        signal_P1 = has_signal(experience.rewards_PG, experience.scored_PG)
        mask_BT = mask_BT & signal_P1.expand(experience.rewards_PG.shape).reshape(-1, 1)
    return s.with_penalties(masked(returns_BT - baseline_BT, mask_BT))


def critic_estimates(s: Scored) -> tuple[Tensor, Tensor]:
    """`[B, T]` advantages and returns by generalised advantage estimation, the KL in the rewards included."""
    mask_BT = s.experience.scored_mask_BT
    rewards_BT = s.rewards_BT if s.penalty_BT is None else s.rewards_BT + s.penalty_BT
    values_BT = old_values(Batch.from_experience(s.experience))
    return gae(rewards_BT, values_BT, mask_BT, s.values["gamma"], s.values["gae_lambda"])


GAMMA = {"gamma": 1.0}
CRITIC = GAMMA | {"gae_lambda": 0.95, "value_coef": 1.0, "value_clip": None}
BASELINES = {
    "none": Baseline(advantages=compared_with(lambda s: 0.0), reads=GAMMA, reads_token_rewards=True),
    "batch_mean": Baseline(advantages=compared_with(batch_mean_of), reads=GAMMA, reads_token_rewards=True),
    "moving_average": Baseline(
        advantages=compared_with(moving_average), reads=GAMMA | {"baseline_decay": 0.9}, reads_token_rewards=True
    ),
    "greedy": Baseline(
        advantages=compared_with(lambda s: greedy_rewards_of(s.experience)),
        comparable=with_baseline,
        reads=GAMMA,
        needs=frozenset({"greedy_reward"}),
        reads_token_rewards=True,
    ),
    "group_mean": Baseline(advantages=within_group(lambda r, scored, x: group_mean(r, scored)), group=2),
    "runner_up": Baseline(advantages=within_group(lambda r, scored, x: runner_up(r, scored)), group=2),
    "leave_one_out": Baseline(advantages=within_group(lambda r, scored, x: leave_one_out_mean(r, scored)), group=2),
    "length_weighted": Baseline(
        advantages=within_group(lambda r, scored, x: length_weighted_mean(r, scored, x.lengths_PG)), group=2
    ),
    "optimal_token": Baseline(
        advantages=optimal_token,
        reads=GAMMA,
        needs=frozenset({"old_for_advantages", "squared_probs"}),
        group=2,
        per_token=True,
        reads_token_rewards=True,
    ),
    "constant": Baseline(advantages=constant, reads={"constant": 0.0}),
    "pass_at_k": Baseline(advantages=pass_at_k, reads={"k": 4, "correct_at": 1.0}, group=2),
    "teacher": Baseline(
        advantages=teacher,
        reads={"coef": 1.0, "floor": -10.0},
        needs=frozenset({"teacher", "old_for_advantages"}),
        per_token=True,
        from_rewards=False,
    ),
    "critic": Baseline(
        advantages=lambda s: critic_estimates(s)[0],
        returns=lambda s: critic_estimates(s)[1],
        reads=CRITIC,
        needs=frozenset({"values"}),
        per_token=True,
        reads_token_rewards=True,
    ),
}


# Shaping: what is added to the rewards


def adding(bonus_PG: Callable[[Values, Experience], Tensor]) -> Callable[[Values, Experience], Experience]:
    return lambda p, x: replace(x, rewards_PG=x.rewards_PG + bonus_PG(p, x))


def overlong(p: Values, x: Experience) -> Experience:
    if not p["overlong_buffer"]:
        return x
    if p["max_completion_length"] is None:
        raise ConfigError(
            given="shaping = soft_overlong without max_completion_length",
            allowed="the length at which the penalty is complete, an integer >= 1",
            fix="Set max_completion_length; in a run it follows sampling.max_completion_length.",
        )
    penalty_PG = soft_overlong(x.lengths_PG, p["max_completion_length"], p["overlong_buffer"])
    return replace(x, rewards_PG=x.rewards_PG + penalty_PG)


def length_reward(p: Values, x: Experience) -> Tensor:
    correct_PG = reaches(x.rewards_PG, p["correct_at"])
    return p["length_coef"] * kimi_length_reward(x.lengths_PG, correct_PG, x.scored_PG)


def within_budget(p: Values, x: Experience) -> Experience:
    if p["token_budget"] is None:
        return x
    return replace(x, rewards_PG=x.rewards_PG + budget_penalty(x.lengths_PG, p["token_budget"], p["budget_penalty"]))


def scores(p: Values, x: Experience) -> Experience:
    fined_PG = x.rewards_PG + without_eos_penalty(x.truncated_PG, p["missing_eos_penalty"])
    return replace(x, rewards_PG=clip_scores(fined_PG, p["score_clip"]))


SHAPINGS = {
    "none": Shaping(),
    "soft_overlong": Shaping(shaped=overlong, reads={"overlong_buffer": None, "max_completion_length": None}),
    "length": Shaping(shaped=adding(length_reward), reads={"length_coef": 1.0, "correct_at": 1.0}),
    "budget": Shaping(shaped=within_budget, reads={"token_budget": None, "budget_penalty": 1.0}),
    "score": Shaping(shaped=scores, reads={"score_clip": None, "missing_eos_penalty": 0.0}),
}

# Normalisations


def by_group(p: Values, x: Experience) -> Tensor:
    return group_std(x.rewards_PG, x.scored_PG, population=p["population"]) + p["std_epsilon"]


def by_batch(p: Values, x: Experience) -> Tensor:
    return batch_std(x.rewards_PG, x.scored_PG, population=p["population"]) + p["std_epsilon"]


def by_mean_reward(p: Values, x: Experience) -> Tensor:
    mean_P1 = group_mean(x.rewards_PG, x.scored_PG)
    if (mean_P1 < 0).any():
        raise ConfigError(
            given="normalisation = mean_reward, and prompts whose mean reward is negative",
            allowed="rewards of at least 0: the mean stands for the probability to solve the prompt",
            fix="Let wrong answers have reward 0, or use normalisation = group_std.",
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
    "nonzero_share": Normalisation(scale=lambda p, x: nonzero_share(x.rewards_PG, x.scored_PG)),
    "per_reward": Normalisation(
        instead=each_reward, reads={"std_epsilon": STD_EPSILON}, needs=frozenset({"reward_components"}), group=2
    ),
    "whiten_tokens": Normalisation(
        after=whitened, reads={"whiten_over": "tokens", "center": True, "population": False}
    ),
}
