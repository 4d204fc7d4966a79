"""Robust DPO: an unbiased loss for noisy labels, some of which are flipped (rDPO, arXiv:2403.00409).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = [-(1 - e) log sigmoid(h) + e log sigmoid(-h)] / (1 - 2 e)           e = label_smoothing

Mean over the pairs of the step. Averaged over labels that are flipped with probability e, L is DPO's loss on the
clean labels. It is unbounded below: as h grows, e log sigmoid(-h) falls without limit.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import unbiased_logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class RobustDPO(PairLoss):
    key = "robust_dpo"

    beta: Positive = 0.01
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    label_smoothing: BelowHalf = 0.1
    """Probability that the two labels of a pair are swapped. With 0 the loss is DPO's."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = unbiased_logistic(chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
