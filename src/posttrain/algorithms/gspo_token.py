"""GSPO-token: GSPO's ratio with an advantage for each token (arXiv:2507.18071, section 4.3).

    A_it = (R_i - mean(R)) / (std(R) + 1e-6)                      or any other advantage per token
    s_it = sg[s_i] * exp(logprobs - sg[logprobs])                 s_i = exp(mean of logprobs - old_logprobs)
    L_it = -min(s_it A_it, clip(s_it, 1 - clip_low, 1 + clip_high) A_it)

Mean over the tokens of a completion, then over completions. The value of s_it is s_i for every token, so that a
completion is clipped as a whole. Only token t contributes to the gradient of s_it. With one advantage per completion,
as here, the loss equals GSPO in value and gradient; in addition, a caller may pass other advantages per token.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.settings import KLInLoss, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, kl_term, weighted
from posttrain.functional.ratios import clipped_surrogate, sequence_token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class GSPOToken(PolicyGradient):
    key = "gspo_token"
    min_group_size = 2
    metrics = clip_formulas(ratio="s")

    clip_low: NonNegative = 3e-4
    """Lower clip bound, as a distance from 1: a completion with A < 0 gains nothing from a ratio below 1 - clip_low."""
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
        ratio_BT = sequence_token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = sequence_mean(loss_BT, mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
