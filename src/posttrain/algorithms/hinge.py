"""Hinge: SLiC's rank calibration on log-ratios (SLiC-HF, arXiv:2305.10425; on ratios: RSO, arXiv:2309.06657).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = max(0, 1 - h)

Mean over the pairs of the step. A pair whose margin has reached 1 has no gradient. With label_smoothing e:
(1 - e) L(h) + e L(-h).
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import hinge, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class Hinge(PairLoss):
    key = "hinge"

    beta: Positive = 0.1
    """Inverse of the target margin: a pair has no gradient once its log-ratios differ by 1 / beta."""
    label_smoothing: BelowHalf = 0.0
    """Probability that the two labels of a pair are swapped."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = smoothed(hinge, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
