"""IPO: identity preference optimisation (arXiv:2310.12036).

    r(y) = mean over the answer of (logprobs - ref_logprobs)      the sum with length_average = false
    h    = r(chosen) - r(rejected)
    L    = (h - 1 / (2 tau))^2

Mean over the pairs of the step. A square in place of DPO's logistic: the margin has a finite target, which
preferences that are always the same cannot drive to infinity.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class IPO(PairLoss):
    key = "ipo"
    metrics = reward_formulas("tau * r, r = mean over the answer (or sum) of (logprobs - ref_logprobs)")

    tau: Positive = 0.1
    """How strongly the policy is held to the reference: log-ratios are driven 1 / (2 tau) apart. Per token that is
    much further than per answer, so that a value for the one does not fit the other."""
    length_average: bool = True
    """Log-ratios per token of the answer; false: summed over the answer, as printed in the paper."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = ratio_2N = pairs.mean_log_ratios() if self.length_average else pairs.log_ratios()
        loss_N = (chosen_N - rejected_N - 1 / (2 * self.tau)).square()
        return pairs.mean(loss_N, totals), pairs.metrics(self.tau * ratio_2N)
