"""APO-zero: anchored preference optimisation, up with the chosen answer (arXiv:2408.06266).

    s(y) = beta * sum_t (logprobs - ref_logprobs)
    L    = 1 - sigmoid(s(chosen)) + sigmoid(s(rejected))

Mean over the pairs of the step. Each answer is moved by itself: the chosen one up, the rejected one down, each the
less the further it has come.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class APOZero(PairLoss):
    key: ClassVar[str] = "apo_zero"

    beta: Positive = 0.1
    """How strongly the policy is held to the reference."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = 1 - torch.sigmoid(chosen_N) + torch.sigmoid(rejected_N)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="APO-zero: anchored preference optimisation",
        paper="APO, arXiv:2408.06266",
        summary="The chosen answer rises and the rejected one falls, each against the reference and not the other.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "none: each answer by itself",
            "link": "sigmoid on each side",
            "extra": "none",
        },
        use_when="The chosen answers are better than what the policy writes, so that they should become more likely.",
        avoid_when="The policy writes better answers than the chosen ones: then apo_down.",
        differs=("Its form for single labelled answers is KTO with a reference point of 0.",),
        sources={"beta": "0.1: the paper, section 5.2; TRL"},
        metrics=LOG_RATIO_METRICS,
    )
