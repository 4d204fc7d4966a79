"""RLOO: REINFORCE Leave-One-Out (Back to Basics, arXiv:2402.14740).

    R~_i = R_i - kl_coef * sum_t log(old / reference)             the whole completion is one action
    A_i  = R~_i - mean of R~ over the other G - 1 completions
    L    = -A_i * sum_t logprobs

Sum over the tokens of a completion, mean over completions. With clip_low and clip_high the sequence ratio
q = exp(sum_t (logprobs - old_logprobs)) is clipped as in PPO, which is needed only with several updates per batch.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import discounted, sampled_kl
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import (
    advantages_of,
    per_completion,
    refuse_half_a_clip,
    weighted,
    weighted_completions,
)
from posttrain.errors import ConfigError
from posttrain.functional.baselines import has_signal, leave_one_out_mean
from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, sequence_product_ratio
from posttrain.functional.reductions import sequence_mean, sequence_sum
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class RLOO(PolicyGradient):
    key = "rloo"
    min_group_size = 2
    kl_in_reward = True
    metrics = clip_formulas("completions", "q")

    clip_low: NonNegative | None = None
    """Lower clip bound of the ratio of the whole completion, as a distance from 1. None: no ratio, as in the paper."""
    clip_high: NonNegative | None = None
    """Upper clip bound, as a distance from 1. Set both bounds or neither."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference (estimator k1), which is subtracted from the reward of the whole completion."""
    gamma: UnitInterval = 1.0
    """Discount factor per token: the advantage of a token is the advantage of its completion, times gamma for each
    token that follows."""

    def __post_init__(self) -> None:
        refuse_half_a_clip(self.clip_low, self.clip_high)
        if self.clip_low is not None and self.gamma != 1:
            raise ConfigError(
                given=f"gamma = {self.gamma} with clip_low and clip_high, which use one ratio per completion",
                allowed="gamma = 1, or no clip",
                fix="Leave gamma out, or leave clip_low and clip_high out.",
            )

    @property
    def reads_token_advantages(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.clip_low is None

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        rewards_PG, scored_PG = experience.rewards_PG, experience.scored_PG
        if self.kl_coef:
            rewards_PG = rewards_PG - self.kl_coef * sampled_kl(experience).sum(dim=-1).reshape(rewards_PG.shape)
        advantages_PG = rewards_PG - leave_one_out_mean(rewards_PG, scored_PG)
        advantages_PG = masked(advantages_PG, scored_PG & has_signal(rewards_PG, scored_PG))
        return discounted(experience, advantages_PG, self.gamma)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        if self.clip_low is None or self.clip_high is None:
            loss_BT = weighted(-advantages_of(batch) * outputs.logprobs_BT, batch)
            return self.finish(sequence_sum(loss_BT, mask_BT, totals.sequences), outputs, batch, totals)
        ratio_B1 = sequence_product_ratio(outputs.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        advantage_B1 = per_completion(advantages_of(batch), mask_BT)
        loss_B1 = clipped_surrogate(ratio_B1, advantage_B1, self.clip_low, self.clip_high)
        loss = sequence_mean(weighted_completions(loss_B1, outputs, batch), mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_B1)
