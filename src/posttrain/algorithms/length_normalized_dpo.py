"""Length-normalised DPO (Tulu 3, arXiv:2411.15124).

    r(y) = sum_t (logprobs - ref_logprobs) / |y|                  per token of the answer
    h    = beta * (r(chosen) - r(rejected))
    L    = -log sigmoid(h)

Mean over the pairs of the step. With label_smoothing e: (1 - e) L(h) + e L(-h).
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import logistic, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class LengthNormalizedDPO(PairLoss):
    key = "length_normalized_dpo"
    metrics = reward_formulas("beta * r, r = mean over the answer of (logprobs - ref_logprobs)")

    beta: Positive = 5.0
    """Strength of the implicit KL constraint, per token: a larger beta keeps the policy closer to the reference. Much
    larger than DPO's beta, which is per answer."""
    label_smoothing: BelowHalf = 0.0
    """Probability that the two labels of a pair are swapped."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.mean_log_ratios()
        loss_N = smoothed(logistic, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
