"""GSPO: Group Sequence Policy Optimization (arXiv:2507.18071).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    s_i = exp(mean over its tokens of logprobs - old_logprobs)    one ratio per completion, a geometric mean
    L_i = -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

Mean over completions. With kl_coef > 0 a KL to the reference is added. It is averaged over the tokens of a completion
and then over completions. The paper has no KL.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas, spread_over
from posttrain.algorithms.settings import KLInLoss, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, kl_term, per_completion, weighted_completions
from posttrain.functional.ratios import clipped_surrogate, sequence_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class GSPO(PolicyGradient):
    key = "gspo"
    min_group_size = 2
    reads_token_advantages = False
    metrics = clip_formulas("completions", "s") | {
        "policy/sequence_ratio_std": "standard deviation of s over the completions of the step"
    }

    clip_low: NonNegative = 3e-4
    """Lower clip bound, as a distance from 1: a completion with A < 0 gains nothing from a ratio below 1 - clip_low.
    The ratio is a mean over tokens, so it moves a thousand times less than the ratio of a single token."""
    clip_high: NonNegative = 4e-4
    """Upper clip bound, as a distance from 1: a completion with A > 0 gains nothing from a ratio above
    1 + clip_high."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. With 0 no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """KL estimator in the loss, read only if kl_coef > 0. k3 has the gradient of the forward KL(reference || policy).
    A `_corrected` estimator has the same value and the unbiased gradient of KL(policy || reference)."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        ratio_B1 = sequence_ratio(outputs.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        advantage_B1 = per_completion(advantages_of(batch), mask_BT)
        loss_B1 = clipped_surrogate(ratio_B1, advantage_B1, self.clip_low, self.clip_high)
        loss_BT = weighted_completions(loss_B1, outputs, batch)
        loss_BT = loss_BT + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = sequence_mean(loss_BT, mask_BT, totals.sequences)
        spread = spread_over(ratio_B1, mask_BT.any(dim=-1, keepdim=True))
        return self.finish(loss, outputs, batch, totals, {"policy/sequence_ratio_std": spread}, clipped=ratio_B1)
