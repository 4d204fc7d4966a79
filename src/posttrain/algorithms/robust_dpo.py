"""Robust DPO: an unbiased loss from labels that may be the wrong way round (rDPO, arXiv:2403.00409).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = [-(1 - e) log sigmoid(h) + e log sigmoid(-h)] / (1 - 2 e)           e = label_smoothing

Mean over the pairs of the step. Averaged over labels that are flipped with probability e, L is DPO's loss on the
clean labels. It is unbounded below: as h grows, e log sigmoid(-h) falls without end.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import unbiased_logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class RobustDPO(PairLoss):
    key: ClassVar[str] = "robust_dpo"

    beta: Positive = 0.01
    """How strongly the policy is held to the reference."""
    label_smoothing: BelowHalf = 0.1
    """Probability that a pair is labelled the wrong way round. 0 is DPO."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = unbiased_logistic(chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="Robust DPO",
        paper="rDPO, arXiv:2403.00409",
        summary="DPO whose loss on noisy labels is, on average, that on clean ones.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "beta times the difference",
            "link": "log sigmoid, minus that of the swapped pair",
            "extra": "none",
        },
        use_when="The share of wrong labels is known well.",
        avoid_when="It is only guessed: too high a guess makes the loss fall without end. Then cDPO.",
        sources={"beta": "0.01: the paper's experiments, appendix B", "label_smoothing": "0.1: the paper, section 6"},
        metrics=LOG_RATIO_METRICS,
    )
