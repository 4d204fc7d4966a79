"""VESPO: Variational sEquence-level Soft Policy Optimization (arXiv:2602.10693).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    q_i = exp(sum over its tokens of logprobs - old_logprobs)     the likelihood ratio, at least 1e-8
    phi = sg[q^k exp(lambda (1 - q))]                             k and lambda by the sign of A
    L   = -phi A logprobs

Mean over all tokens of the step. phi is 1 at q = 1 and falls to 0 far from it on both sides: answers that have become
much less or much more likely under the policy lose their weight smoothly.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.functional.ratios import sequence_product_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import kernel
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class VESPO(PolicyGradient):
    key = "vespo"
    min_group_size = 2
    auto_correction = "bypass"
    always_needs = frozenset({"old"})
    metrics = {"policy/kernel_mean": "mean of phi over the trained tokens"}

    k_pos: NonNegative = 2.0
    """Exponent of q if A >= 0: larger values let the weight fall faster as the completion becomes less likely."""
    lambda_pos: NonNegative = 3.0
    """Decay rate if A >= 0: larger values let the weight fall faster as the completion becomes more likely."""
    k_neg: NonNegative = 3.0
    """Exponent of q if A < 0."""
    lambda_neg: NonNegative = 2.0
    """Decay rate if A < 0."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT, advantages_BT = batch.completion_mask_BT, advantages_of(batch)
        kept_BT = mask_BT if batch.correction_BT is None else mask_BT & (batch.correction_BT != 0)
        weight_BT = kernel(
            sequence_product_ratio(outputs.logprobs_BT, batch.old_logprobs_BT, kept_BT),
            advantages_BT,
            k_pos=self.k_pos,
            lambda_pos=self.lambda_pos,
            k_neg=self.k_neg,
            lambda_neg=self.lambda_neg,
        )
        loss_BT = weighted(-weight_BT * advantages_BT * outputs.logprobs_BT, batch)
        loss = token_mean(loss_BT, mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, {"policy/kernel_mean": mean_over(weight_BT, mask_BT)})
