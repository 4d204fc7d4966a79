"""REINFORCE++-baseline: group mean as the baseline, normalised over the whole batch (arXiv:2501.03262).

    A0_i = R_i - mean(R)                                          over the G completions of one prompt
    A    = (A0 - mean(A0)) / sqrt(var(A0) + 1e-8)                 over all tokens of the rollout batch
    rho  = exp(logprobs - old_logprobs)                           per token
    L    = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * k2(policy, reference)

Mean over all tokens of the step. The KL estimator is k2, which has the gradient of KL(policy || reference).
"""

from __future__ import annotations

from typing import Literal

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import discounted
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, kl_term, weighted
from posttrain.functional.baselines import center_by_group, whiten
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class ReinforcePlusPlusBaseline(PolicyGradient):
    key = "reinforce_plus_plus_baseline"
    min_group_size = 2
    metrics = clip_formulas()

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference in the loss (estimator k2). With 0 no reference model is loaded."""
    gamma: UnitInterval = 1.0
    """Discount factor per token: before whitening, the advantage of a token is the advantage of its completion, times
    gamma for each token that follows."""
    whiten_over: Literal["tokens", "sequences"] = "tokens"
    """Unit that counts once in the mean and the variance: each token, so that long completions dominate, or each
    completion."""
    center: bool = True
    """If true, the mean over the batch is subtracted as well, as in the paper. The mean over tokens is not 0 if lengths
    differ, so a group of equal rewards gets a small advantage. If false, this advantage is exactly 0."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        centered_BT = discounted(experience, center_by_group(experience.rewards_PG, experience.scored_PG), self.gamma)
        mean = "subtract" if self.center else "keep"
        return whiten(centered_BT, experience.scored_mask_BT, over=self.whiten_over, mean=mean)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, "k2")
        loss = token_mean(loss_BT, batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
