"""The baselines of `policy_gradient` (RULE 10, 11)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from posttrain.algorithms.composition.options import Baseline, Scored
from posttrain.algorithms.critic import old_values
from posttrain.algorithms.reinforce import MovingAverage
from posttrain.algorithms.remax import greedy_rewards_of, with_baseline
from posttrain.algorithms.returns import teacher_log_ratio
from posttrain.errors import ConfigError
from posttrain.functional.baselines import (
    batch_mean,
    group_mean,
    has_signal,
    leave_one_out_mean,
    length_weighted_mean,
    optimal_token_baseline,
    pass_at_k_advantages,
    reaches,
    return_to_go,
    runner_up,
)
from posttrain.functional.gae import gae
from posttrain.functional.masks import masked
from posttrain.types import Batch, Experience, Tensor


def compared_with(baseline: Callable[[Scored], Tensor | float]) -> Callable[[Scored], Tensor]:
    """Advantages: the discounted return from each token on, minus a `[P, G]`, `[P, 1]` or scalar baseline."""

    def advantages(s: Scored) -> Tensor:
        mask_BT, zero_PG = s.experience.scored_mask_BT, torch.zeros_like(s.experience.rewards_PG)
        returns_BT = return_to_go(s.rewards_BT, mask_BT, s.values["gamma"])
        baseline_B1, scale_B1 = ((x + zero_PG).reshape(-1, 1) for x in (baseline(s), s.scale_PG))
        return s.with_penalties(masked((returns_BT - baseline_B1) / scale_B1, mask_BT))

    return advantages


def within_group(baseline_PG: Callable[[Tensor, Tensor, Experience], Tensor]) -> Callable[[Scored], Tensor]:
    """Advantages: the reward of the completion minus a baseline of its prompt; 0 for equal rewards (RULE 11)."""

    def advantages(s: Scored) -> Tensor:
        rewards_PG, scored_PG = s.experience.rewards_PG, s.experience.scored_PG
        compared_PG = rewards_PG - baseline_PG(rewards_PG, scored_PG, s.experience)
        return s.per_completion(masked(compared_PG, scored_PG & has_signal(rewards_PG, scored_PG)))

    return advantages


def moving_average(s: Scored) -> float:
    return s.state.mean if isinstance(s.state, MovingAverage) else 0.0


def batch_mean_of(s: Scored) -> Tensor:
    return batch_mean(s.experience.total_rewards_PG, s.experience.scored_PG)


def pass_at_k(s: Scored) -> Tensor:
    rewards_PG, scored_PG = s.experience.rewards_PG, s.experience.scored_PG
    correct_PG = reaches(rewards_PG, s.values["correct_at"])
    return s.per_completion(pass_at_k_advantages(correct_PG, scored_PG, s.values["k"]).to(rewards_PG.dtype))


def constant(s: Scored) -> Tensor:
    return s.per_completion(s.experience.rewards_PG - s.values["constant"])


def teacher(s: Scored) -> Tensor:
    return s.values["coef"] * teacher_log_ratio(s.experience, s.values["floor"])


def optimal_token(s: Scored) -> Tensor:
    """`[B, T]`: the discounted return from each token on, minus the token's baseline; 0 for equal rewards (RULE 11)."""
    experience, mask_BT = s.experience, s.experience.scored_mask_BT
    old_BT, squared_BT = experience.old_logprobs_BT, experience.squared_probs_BT
    if old_BT is None or squared_BT is None:
        raise ConfigError(
            given="baseline = optimal_token, but old log-probabilities or squared probabilities are missing",
            allowed="old_logprobs_BT, and squared_probs_BT: the sum over the vocabulary of p^2",
            fix="Pass both, or set baseline = group_mean.",
        )
    returns_BT = return_to_go(s.rewards_BT, mask_BT, s.values["gamma"])
    baseline_BT = optimal_token_baseline(returns_BT, old_BT, squared_BT, mask_BT, experience.group_size)
    if experience.token_rewards_BT is None:
        signal_P1 = has_signal(experience.rewards_PG, experience.scored_PG)
        mask_BT = mask_BT & signal_P1.expand(experience.rewards_PG.shape).reshape(-1, 1)
    return s.with_penalties(masked(returns_BT - baseline_BT, mask_BT))


def critic_estimates(s: Scored) -> tuple[Tensor, Tensor]:
    """`[B, T]` advantages and returns by generalised advantage estimation, including a KL in the rewards."""
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
        advantages=within_group(lambda r, scored, x: length_weighted_mean(r, scored, x.trained_PG)), group=2
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
