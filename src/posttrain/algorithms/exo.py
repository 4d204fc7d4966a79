"""EXO: efficient exact optimization, on pairs (arXiv:2402.00856).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = KL([sigmoid(h), sigmoid(-h)] || [1 - e, e])               e = label_smoothing

Mean over the pairs of the step. DPO is the same KL with its arguments exchanged, which covers modes where EXO seeks
them. The least loss, 0, is at sigmoid(h) = 1 - e.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, PositiveBelowHalf, settings
from posttrain.functional.preferences import reverse_cross_entropy
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class EXO(PairLoss):
    key: ClassVar[str] = "exo"

    beta: Positive = 0.1
    """How strongly the policy is held to the reference."""
    label_smoothing: PositiveBelowHalf = 1e-3
    """Probability of the rejected answer in the target; with 0 the KL would be infinite."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = reverse_cross_entropy(chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="EXO: efficient exact optimization",
        paper="EXO, arXiv:2402.00856",
        summary="DPO's KL the other way round: the policy seeks the preferred mode.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "beta times the difference",
            "link": "reverse KL to the smoothed label",
            "extra": "none",
        },
        use_when="DPO spreads probability over mediocre answers.",
        avoid_when="Pairs start far on the wrong side: there sigmoid(h) is 0 and so is the gradient.",
        differs=("The paper's loss for more than two answers, weighted by a reward model, is not offered.",),
        sources={"beta": "0.1: the paper (beta_r), appendix B", "label_smoothing": "0.001: the paper, TRL"},
        metrics=LOG_RATIO_METRICS,
    )
