"""ReMax: REINFORCE with the reward of the greedy completion as its baseline (arXiv:2310.10505).

    r_t = R on the last token, minus kl_coef * log(old / reference) on every token
    A_t = sum over s >= t of gamma^(s-t) r_s  -  R(greedy completion of the prompt)
    L   = -A_t * logprobs

Sum over the tokens of a completion, mean over completions. With clip_low and clip_high the token ratio is clipped as
in PPO, which is needed only with several updates per batch. A prompt whose greedy completion could not be scored is
left out of the loss.
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import token_returns
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, refuse_half_a_clip, weighted
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import sequence_sum
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class ReMax(PolicyGradient):
    key = "remax"
    reads_token_rewards = True
    always_needs = frozenset({"greedy_reward"})
    kl_in_reward = True
    metrics = clip_formulas()

    clip_low: NonNegative | None = None
    """Lower clip bound of the token ratio, as a distance from 1. None: no ratio, as in the paper."""
    clip_high: NonNegative | None = None
    """Upper clip bound, as a distance from 1. Set both bounds or neither."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference (estimator k1), which is subtracted from the reward of each token, but not
    from the reward of the greedy completion."""
    gamma: UnitInterval = 1.0
    """Discount factor per token."""

    def __post_init__(self) -> None:
        refuse_half_a_clip(self.clip_low, self.clip_high)

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        greedy_P1 = greedy_rewards_of(experience)
        compared = with_baseline(experience)
        greedy_B1 = greedy_P1.expand(experience.rewards_PG.shape).reshape(-1, 1)
        returns_BT = token_returns(compared, self.kl_coef, self.gamma)
        return masked(returns_BT - greedy_B1, compared.scored_mask_BT)

    def to_batch(self, experience: Experience, state: None = None) -> Batch:
        return Batch.from_experience(with_baseline(experience), self.advantages(experience, state))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT, advantages_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT), advantages_of(batch)
        if self.clip_low is None or self.clip_high is None:
            loss_BT = -advantages_BT * outputs.logprobs_BT
        else:
            loss_BT = clipped_surrogate(ratio_BT, advantages_BT, self.clip_low, self.clip_high)
        loss = sequence_sum(weighted(loss_BT, batch), batch.completion_mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)


def greedy_rewards_of(experience: Experience) -> Tensor:
    """`[P, 1]`: the reward of each prompt's greedy completion; nan if there is none."""
    if experience.greedy_rewards_P is None:
        raise ConfigError(
            given="the reward of the greedy completion as the baseline, but there are no rewards of greedy completions",
            allowed="greedy_rewards_P: one reward per prompt, nan if the completion could not be scored",
            fix="Pass greedy_rewards_P, or use an algorithm that needs no greedy completions, such as rloo.",
        )
    return experience.greedy_rewards_P[:, None].to(experience.rewards_PG.dtype)


def with_baseline(experience: Experience) -> Experience:
    """The experience with the completions of a prompt marked as unscored if it has no greedy reward as a baseline."""
    return replace(experience, scored_PG=experience.scored_PG & ~greedy_rewards_of(experience).isnan())
