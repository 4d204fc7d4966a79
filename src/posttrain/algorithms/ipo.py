"""IPO: identity preference optimisation (arXiv:2310.12036).

    r(y) = mean over the answer of (logprobs - ref_logprobs)      the sum with length_average = false
    h    = r(chosen) - r(rejected)
    L    = (h - 1 / (2 tau))^2

Mean over the pairs of the step. A square in place of DPO's logistic: the margin has a finite target, which
preferences that are always the same cannot drive to infinity.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import Positive, settings
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class IPO(PairLoss):
    key: ClassVar[str] = "ipo"

    tau: Positive = 0.1
    """How strongly the policy is held to the reference: log-ratios are driven 1 / (2 tau) apart. Per token that is
    much further than per answer, so that a value for the one does not fit the other."""
    length_average: bool = True
    """Log-ratios per token of the answer; false: summed over the answer, as printed in the paper."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = ratio_2N = pairs.mean_log_ratios() if self.length_average else pairs.log_ratios()
        loss_N = (chosen_N - rejected_N - 1 / (2 * self.tau)).square()
        return pairs.mean(loss_N, totals), pairs.metrics(self.tau * ratio_2N)

    card: ClassVar[Card] = Card(
        title="IPO: identity preference optimisation",
        paper="IPO, arXiv:2310.12036",
        summary="Regress the margin on a finite target instead of pushing it to infinity.",
        choices={
            "score": "log-ratio, mean over the answer (length_average) or sum",
            "reference": "yes",
            "margin": "the difference",
            "link": "square around 1 / (2 tau)",
            "extra": "none",
        },
        use_when="Preferences are near certain, so that DPO overfits: the margin stays finite.",
        avoid_when="Margins of very different size are wanted: every pair has the same target.",
        differs=(
            "The paper sums log-ratios over the answer, as OpenRLHF and TRL's online trainer do; TRL's DPO trainer, "
            "HALOs and AReaL average them, which is the default here. tau does not carry over between the two: with "
            "0.1 the target is 5 nats, per token hardly reachable.",
            "With sums, and pairs drawn from a distribution mu, the optimum is reference * exp(p(y > mu) / tau).",
        ),
        sources={"tau": "0.1: TRL, one of the paper's values", "length_average": "true: TRL, HALOs, AReaL"},
        metrics=reward_formulas("tau * r, r = mean over the answer (or sum) of (logprobs - ref_logprobs)"),
    )
