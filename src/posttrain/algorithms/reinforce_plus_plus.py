"""REINFORCE++: REINFORCE with the stabilisers of PPO, normalised over the whole batch (arXiv:2501.03262).

    r_t = R on the last token, minus kl_coef * log(old / reference) on every token
    G_t = sum over s >= t of gamma^(s-t) r_s
    A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8)                   over all tokens of the rollout batch
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

Mean over all tokens of the step.
"""

from __future__ import annotations

from typing import Literal

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import token_returns
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, weighted
from posttrain.functional.baselines import whiten
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class ReinforcePlusPlus(PolicyGradient):
    key = "reinforce_plus_plus"
    reads_token_rewards = True
    kl_in_reward = True
    metrics = clip_formulas()

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference (estimator k1), which is subtracted from the reward of each token."""
    gamma: UnitInterval = 1.0
    """Discount factor per token."""
    whiten_over: Literal["tokens", "sequences"] = "tokens"
    """Unit that counts once in the mean and the variance of the returns: each token, so that long completions dominate,
    or each completion."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        returns_BT = token_returns(experience, self.kl_coef, self.gamma)
        return whiten(returns_BT, experience.scored_mask_BT, over=self.whiten_over)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss = token_mean(weighted(loss_BT, batch), batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
