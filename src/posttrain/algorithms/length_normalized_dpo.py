"""Length-normalised DPO (Tulu 3, arXiv:2411.15124).

    r(y) = sum_t (logprobs - ref_logprobs) / |y|                  per token of the answer
    h    = beta * (r(chosen) - r(rejected))
    L    = -log sigmoid(h)

Mean over the pairs of the step. With label_smoothing e: (1 - e) L(h) + e L(-h).
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import logistic, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class LengthNormalizedDPO(PairLoss):
    key: ClassVar[str] = "length_normalized_dpo"

    beta: Positive = 5.0
    """How strongly the policy is held to the reference, per token: much larger than DPO's beta, which is per answer."""
    label_smoothing: BelowHalf = 0.0
    """Probability that a pair is labelled the wrong way round."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.mean_log_ratios()
        loss_N = smoothed(logistic, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="Length-normalised DPO",
        paper="Tulu 3, arXiv:2411.15124",
        summary="DPO on the log-ratio per token, so that a longer answer is not a larger margin.",
        choices={
            "score": "log-ratio, mean over the answer",
            "reference": "yes",
            "margin": "beta times the difference",
            "link": "log sigmoid",
            "extra": "none",
        },
        use_when="Answers differ much in length, or DPO makes them longer and longer.",
        avoid_when="The answers of a pair have about the same length: then it is DPO at another beta.",
        differs=("TRL's loss_type = sigmoid_norm is the same loss, at beta 0.1 unless set.",),
        sources={"beta": "5: Tulu 3", "label_smoothing": "0: Tulu 3, TRL"},
        metrics=reward_formulas("beta * r, r = mean over the answer of (logprobs - ref_logprobs)"),
    )
