"""SPPO: self-play preference optimisation, with hard win probabilities (arXiv:2405.00675).

    r(y) = sum_t (logprobs - ref_logprobs)
    L    = (r(chosen) - 1 / (2 beta))^2 + (r(rejected) + 1 / (2 beta))^2

Mean over the pairs of the step. Each answer has a squared loss with the target (p - 1/2) / beta for its log-ratio.
Its win probability p is 1 for the chosen answer and 0 for the rejected one.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class SPPO(PairLoss):
    key = "sppo"

    beta: Positive = 1e-3
    """Inverse of the self-play step size, the paper's eta: the loss drives log-ratios to +-1 / (2 beta)."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = ratio_2N = pairs.log_ratios()
        target = 1 / (2 * self.beta)
        loss_N = (chosen_N - target).square() + (rejected_N + target).square()
        return pairs.mean(loss_N, totals), pairs.metrics(self.beta * ratio_2N)
