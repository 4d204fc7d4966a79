"""SPPO: self-play preference optimisation, with hard win probabilities (arXiv:2405.00675).

    r(y) = sum_t (logprobs - ref_logprobs)
    L    = (r(chosen) - 1 / (2 beta))^2 + (r(rejected) + 1 / (2 beta))^2

Mean over the pairs of the step. A square on each answer: the chosen one wins with probability 1, the rejected one
with 0, and the log-ratio should be (that - 1/2) / beta.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, PairLoss, pairs_of
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class SPPO(PairLoss):
    key: ClassVar[str] = "sppo"

    beta: Positive = 1e-3
    """1 / beta is the step of self-play, the paper's eta: log-ratios are driven to +-1 / (2 beta)."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = ratio_2N = pairs.log_ratios()
        target = 1 / (2 * self.beta)
        loss_N = (chosen_N - target).square() + (rejected_N + target).square()
        return pairs.mean(loss_N, totals), pairs.metrics(self.beta * ratio_2N)

    card: ClassVar[Card] = Card(
        title="SPPO: self-play preference optimisation",
        paper="SPPO, arXiv:2405.00675",
        summary="One round of a game against the reference: each answer's log-ratio is regressed on its win rate.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "none: each answer by itself",
            "link": "square around +1 / (2 beta) and -1 / (2 beta)",
            "extra": "none",
        },
        use_when="Pairs are sampled from the policy in rounds, each round with the last one's model as the reference.",
        avoid_when="Pairs come from elsewhere: the win rates are those against the reference's own answers.",
        differs=(
            "Win rates are 1 and 0, TRL's sppo_hard; the paper estimates them by comparing several answers.",
            "The loss is of the size of 1 / (2 beta^2), half a million at the default: clip gradients.",
        ),
        sources={"beta": "0.001: the paper (eta = 1000) and the authors' code; TRL 0.1"},
        metrics=LOG_RATIO_METRICS,
    )
