"""DiscoPOP: log-ratio modulated loss, found by a language model that proposed losses (arXiv:2406.08414).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    g = sigmoid(h / tau)
    L = (1 - g) * -log sigmoid(h) + g * exp(-h)

Mean over the pairs of the step. Wrong pairs (h < 0) have DPO's loss, right ones an exponential one; between them,
near h = 0, L is not convex. With label_smoothing e: (1 - e) L(h) + e L(-h).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.preferences import log_ratio_modulated, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class DiscoPOP(PairLoss):
    key: ClassVar[str] = "discopop"

    beta: Positive = 0.05
    """How strongly the policy is held to the reference."""
    label_smoothing: BelowHalf = 0.0
    """Probability that a pair is labelled the wrong way round."""
    tau: Positive = 0.05
    """Width of the transition between the two losses, in units of h."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        link = partial(log_ratio_modulated, tau=self.tau)
        loss_N = smoothed(link, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="DiscoPOP: discovered preference optimization",
        paper="DiscoPOP, arXiv:2406.08414",
        summary="A blend of a logistic and an exponential loss that a search over losses found.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "beta times the difference",
            "link": "log sigmoid blended with an exponential",
            "extra": "none",
        },
        use_when="DPO has been tuned and another link is worth a try.",
        avoid_when="A loss with a known optimum is wanted: this one is not convex.",
        differs=("g exp(-h) is computed as one exponential, so that a very negative h gives 0 and not 0 * infinity.",),
        sources={
            "beta": "0.05: the paper, appendix B.1; TRL 0.1",
            "label_smoothing": "0: the paper, TRL",
            "tau": "0.05: the paper, appendix E; TRL",
        },
        metrics=LOG_RATIO_METRICS,
    )
