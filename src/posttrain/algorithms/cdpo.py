"""cDPO: conservative DPO, for noisy labels, some of which are flipped (Mitchell 2023, a note on DPO and noise).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = -(1 - e) log sigmoid(h) - e log sigmoid(-h)               e = label_smoothing

Mean over the pairs of the step. The loss is smallest at sigmoid(h) = 1 - e, so the margin stays finite.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import logistic, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class CDPO(PairLoss):
    key = "cdpo"

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    label_smoothing: BelowHalf = 0.1
    """Probability that the two labels of a pair are swapped. With 0 the loss is DPO's."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = smoothed(logistic, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
