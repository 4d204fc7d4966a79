"""GRPO: Group Relative Policy Optimization (DeepSeekMath, arXiv:2402.03300).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Mean over the tokens of a completion, then over completions.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, KLInLoss, NonNegative, Share, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, kl_term, weighted
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class GRPO(PolicyGradient):
    key = "grpo"
    min_group_size = 2
    metrics = clip_formulas() | DUAL_CLIP_METRICS

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Upper bound of a token's loss if its advantage is negative, as a multiple of |A|. None: no bound."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. With 0 no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """KL estimator in the loss, read only if kl_coef > 0. k3, as in the paper, has the gradient of the forward
    KL(reference || policy). A `_corrected` estimator has the same value and the unbiased gradient of
    KL(policy || reference)."""
    top_entropy_quantile: Share = 1.0
    """Share of the tokens of an update, those with the largest entropy, that have a policy term. The denominator still
    counts all tokens. 1: all tokens; arXiv:2506.01939 uses 0.2."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = sequence_mean(loss_BT, batch.completion_mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
