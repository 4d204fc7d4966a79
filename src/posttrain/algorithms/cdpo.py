"""cDPO: conservative DPO, for labels that may be the wrong way round (Mitchell 2023, a note on DPO and noise).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = -(1 - e) log sigmoid(h) - e log sigmoid(-h)               e = label_smoothing

Mean over the pairs of the step. The least loss is at sigmoid(h) = 1 - e: the margin stays finite.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import logistic, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class CDPO(PairLoss):
    key: ClassVar[str] = "cdpo"

    beta: Positive = 0.1
    """How strongly the policy is held to the reference."""
    label_smoothing: BelowHalf = 0.1
    """Probability that a pair is labelled the wrong way round. 0 is DPO."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = smoothed(logistic, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="cDPO: conservative DPO",
        paper="Mitchell 2023, A note on DPO with noisy preferences and relationship to IPO",
        summary="DPO on labels that are wrong with a known probability: the margin has a finite target.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "beta times the difference",
            "link": "log sigmoid, mixed with that of the swapped pair",
            "extra": "none",
        },
        use_when="Labels are noisy and about how noisy is known.",
        avoid_when="The loss on the clean labels is wanted without bias: then robust_dpo.",
        differs=(
            "TRL has no cDPO: label_smoothing is read by its robust loss only. OpenRLHF's label_smoothing is it.",
        ),
        sources={
            "beta": "0.1: DPO, TRL",
            "label_smoothing": "0.1 here, as in robust DPO's experiments; the note leaves it open",
        },
        metrics=LOG_RATIO_METRICS,
    )
