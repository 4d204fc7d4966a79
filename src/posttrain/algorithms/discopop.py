"""DiscoPOP: a log-ratio modulated loss, discovered by a language model that proposed losses (arXiv:2406.08414).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    g = sigmoid(h / tau)
    L = (1 - g) * -log sigmoid(h) + g * exp(-h)

Mean over the pairs of the step. Misordered pairs (h < 0) have DPO's loss, correctly ordered pairs an exponential
loss. Near h = 0, between the two, L is not convex. With label_smoothing e: (1 - e) L(h) + e L(-h).
"""

from __future__ import annotations

from functools import partial

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import log_ratio_modulated, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class DiscoPOP(PairLoss):
    key = "discopop"

    beta: Positive = 0.05
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    label_smoothing: BelowHalf = 0.0
    """Probability that the two labels of a pair are swapped."""
    tau: Positive = 0.05
    """Width of the transition between the two losses, in units of h."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        link = partial(log_ratio_modulated, tau=self.tau)
        loss_N = smoothed(link, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
