"""Code that the variants of REINFORCE share: returns with a KL in the reward, discounts, and a teacher's log-ratio."""

from __future__ import annotations

from posttrain.errors import ConfigError
from posttrain.functional.baselines import place_on_last_token, return_to_go
from posttrain.functional.kl import k1
from posttrain.functional.masks import masked
from posttrain.types import Experience, Tensor


def token_returns(experience: Experience, kl_coef: float, gamma: float) -> Tensor:
    """`[B, T]` return-to-go of the reward on the last token, minus kl_coef * log(old / reference) on every token."""
    experience.require_rewards()
    mask_BT = experience.scored_mask_BT
    rewards_BT = place_on_last_token(experience.rewards_PG.reshape(-1), mask_BT, experience.token_rewards_BT)
    if kl_coef:
        rewards_BT = rewards_BT - kl_coef * sampled_kl(experience)
    return return_to_go(rewards_BT, mask_BT, gamma)


def discounted(experience: Experience, advantages_PG: Tensor, gamma: float) -> Tensor:
    """`[B, T]` the advantage of the completion on each trained token, times gamma for each trained token after it."""
    mask_BT = experience.scored_mask_BT
    experience.broadcast(advantages_PG)  # refuses token rewards, which these advantages ignore
    return return_to_go(place_on_last_token(advantages_PG.reshape(-1), mask_BT), mask_BT, gamma)


def teacher_log_ratio(experience: Experience, floor: float) -> Tensor:
    """`[B, T]` log(teacher / policy) of each token, at least `floor`. The policy is the one before the update.

    The floor replaces -inf if the teacher gives a token probability 0.
    """
    if experience.teacher_logprobs_BT is None or experience.old_logprobs_BT is None:
        raise ConfigError(
            given="distillation, but teacher or old log-probabilities are missing",
            allowed="teacher_logprobs_BT and old_logprobs_BT",
            fix="Pass both: the advantage of a token is log(teacher / old policy).",
        )
    log_ratio_BT = experience.teacher_logprobs_BT - experience.old_logprobs_BT
    return masked(log_ratio_BT.clamp(min=floor), experience.scored_mask_BT).detach()


def sampled_kl(experience: Experience) -> Tensor:
    """`[B, T]` k1 estimate of KL(policy before the update || reference), for a penalty in the reward."""
    if experience.old_logprobs_BT is None or experience.ref_logprobs_BT is None:
        raise ConfigError(
            given="kl_coef > 0, but old or reference log-probabilities are missing",
            allowed="kl_coef = 0, or old_logprobs_BT and ref_logprobs_BT",
            fix="Pass old_logprobs_BT and ref_logprobs_BT, or set kl_coef = 0.",
        )
    return masked(k1(experience.old_logprobs_BT, experience.ref_logprobs_BT), experience.completion_mask_BT)
