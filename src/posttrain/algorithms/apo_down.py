"""APO-down: anchored preference optimisation that lowers both answers (arXiv:2408.06266).

    s(y) = beta * sum_t (logprobs - ref_logprobs)
    L    = sigmoid(s(chosen)) + 1 - sigmoid(s(chosen) - s(rejected))

Mean over the pairs of the step. Both answers become less likely, the rejected one more so.
"""

from __future__ import annotations

import torch

from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class APODown(PairLoss):
    key = "apo_down"

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = torch.sigmoid(chosen_N) + 1 - torch.sigmoid(chosen_N - rejected_N)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
