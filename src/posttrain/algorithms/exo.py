"""EXO: efficient exact optimization, on pairs (arXiv:2402.00856).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = KL([sigmoid(h), sigmoid(-h)] || [1 - e, e])               e = label_smoothing

Mean over the pairs of the step. DPO is the same KL with its arguments exchanged: DPO is mode-covering, EXO is
mode-seeking. The smallest loss, 0, is at sigmoid(h) = 1 - e.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, PositiveBelowHalf, settings
from posttrain.functional.preferences import reverse_cross_entropy
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class EXO(PairLoss):
    key = "exo"

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    label_smoothing: PositiveBelowHalf = 1e-3
    """Probability of the rejected answer in the target distribution. With 0 the KL would be infinite."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = reverse_cross_entropy(chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
