"""NCA: noise contrastive alignment, on pairs (arXiv:2402.05369).

    s(y) = beta * sum_t (logprobs - ref_logprobs)
    L    = -log sigmoid(s(chosen)) - 1/2 log sigmoid(-s(chosen)) - 1/2 log sigmoid(-s(rejected))

Mean over the pairs of the step. NCA learns the reward itself and not only the margin: for two answers that are
equally good it keeps s at 0, so that the probability of the chosen answer does not fall.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, settings
from posttrain.functional.preferences import logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class NCA(PairLoss):
    key = "nca"

    beta: Positive = 0.01
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = logistic(chosen_N) + (logistic(-chosen_N) + logistic(-rejected_N)) / 2
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
