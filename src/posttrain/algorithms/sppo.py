"""SPPO: self-play preference optimisation, with hard win probabilities (arXiv:2405.00675).

    r(y) = sum_t (logprobs - ref_logprobs)
    L    = (r(chosen) - 1 / (2 beta))^2 + (r(rejected) + 1 / (2 beta))^2

Mean over the pairs of the step. A square on each answer: the chosen one wins with probability 1, the rejected one
with 0, and the log-ratio should be (that - 1/2) / beta.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class SPPO(PairLoss):
    key = "sppo"

    beta: Positive = 1e-3
    """1 / beta is the step of self-play, the paper's eta: log-ratios are driven to +-1 / (2 beta)."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = ratio_2N = pairs.log_ratios()
        target = 1 / (2 * self.beta)
        loss_N = (chosen_N - target).square() + (rejected_N + target).square()
        return pairs.mean(loss_N, totals), pairs.metrics(self.beta * ratio_2N)
