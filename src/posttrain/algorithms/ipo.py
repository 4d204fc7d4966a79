"""IPO: identity preference optimisation (arXiv:2310.12036).

    r(y) = mean over the answer of (logprobs - ref_logprobs)      the sum with length_average = false
    h    = r(chosen) - r(rejected)
    L    = (h - 1 / (2 tau))^2

Mean over the pairs of the step. A square replaces DPO's logistic loss. The margin has a finite target, so that
deterministic preferences cannot drive it to infinity.
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
    """Strength of the implicit KL constraint: the loss drives log-ratios 1 / (2 tau) apart. The same distance is much
    larger per token than per answer, so the two need different values."""
    length_average: bool = True
    """If true, log-ratios are averaged over the tokens of the answer. If false, they are summed, as in the paper."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = ratio_2N = pairs.mean_log_ratios() if self.length_average else pairs.log_ratios()
        loss_N = (chosen_N - rejected_N - 1 / (2 * self.tau)).square()
        return pairs.mean(loss_N, totals), pairs.metrics(self.tau * ratio_2N)
