"""DPO: Direct Preference Optimization (arXiv:2305.18290).

    r(y) = sum_t (logprobs - ref_logprobs)                        log-ratio of an answer y; beta r(y) is its reward
    h    = beta * (r(chosen) - r(rejected))
    L    = -log sigmoid(h)

Mean over the pairs of the step. With label_smoothing e: (1 - e) L(h) + e L(-h), which is cDPO. With another
divergence than the reverse KL, r becomes f'(exp(r)): 1 - exp(-r) for the forward KL, log(2 sigmoid(r)) for
Jensen-Shannon, (exp((alpha - 1) r) - 1) / (alpha - 1) for alpha (arXiv:2309.16240).
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import BelowHalf, Finite, Positive, UnitInterval, settings
from posttrain.errors import ConfigError
from posttrain.functional.preferences import Divergence, divergence_score, logistic, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals

DEFAULT_ALPHA = 0.5


@settings
class DPO(PairLoss):
    key: ClassVar[str] = "dpo"

    beta: Positive = 0.1
    """How strongly the policy is held to the reference: the reward of an answer is beta times its log-ratio."""
    label_smoothing: BelowHalf = 0.0
    """Probability that a pair is labelled the wrong way round."""
    divergence: Divergence = "reverse_kl"
    """What holds the policy to the reference. All but reverse_kl bound the reward of an answer on one side."""
    alpha: Finite = DEFAULT_ALPHA
    """Read only when divergence = alpha. 0 is the forward KL; 1 would be the reverse KL."""
    tail_weight: UnitInterval = 1.0
    """Weight of the tokens beyond the length of the shorter answer of a pair; below 1 length counts less (LD-DPO)."""

    def __post_init__(self) -> None:
        if self.divergence != "alpha" and self.alpha != DEFAULT_ALPHA:
            raise ConfigError(
                given=f"alpha = {self.alpha:g}, which divergence = {self.divergence} does not read",
                allowed="alpha beside divergence = alpha",
                fix="Set divergence = alpha, or leave alpha out; the weight of a likelihood term is alpha of rpo.",
            )
        if self.divergence == "alpha" and self.alpha == 1:
            raise ConfigError(
                given="alpha = 1, where the alpha divergence is the reverse KL",
                allowed="a number other than 1",
                fix="Set divergence = reverse_kl, or alpha = 0.5.",
            )

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        score_2N = divergence_score(pairs.log_ratios(self.tail_weight), self.divergence, self.alpha)
        chosen_N, rejected_N = reward_2N = self.beta * score_2N
        loss_N = smoothed(logistic, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    card: ClassVar[Card] = Card(
        title="DPO: Direct Preference Optimization",
        paper="DPO, arXiv:2305.18290",
        summary="The log-ratio to a reference is the reward, so that pairs of answers train the policy directly.",
        choices={
            "score": "log-ratio, summed over the answer",
            "reference": "yes",
            "margin": "beta times the difference",
            "link": "log sigmoid",
            "extra": "none",
        },
        use_when="There are pairs of answers of which one was preferred: the default of the family.",
        avoid_when="Preferences are near certain (then IPO), answers differ much in length (then SimPO or "
        "length_normalized_dpo), or there are single labelled answers only (then KTO).",
        differs=(
            "The optimum is that of reward maximisation with a KL penalty, reference * exp(reward / beta), if the "
            "preferences are Bradley-Terry and every answer is compared; the path there is another one.",
            "TRL's loss_type = sigmoid ignores label_smoothing; here, as in OpenRLHF, it is cDPO.",
            "WPO's weights are not offered: they need the sum of the squared probabilities at each token.",
        ),
        sources={
            "beta": "0.1: the paper (0.5 for its summaries), TRL, OpenRLHF, AReaL",
            "label_smoothing": "0: the paper, TRL, OpenRLHF",
            "divergence": "reverse_kl: the paper, TRL",
            "alpha": "0.5 here: midway between the forward and the reverse KL",
            "tail_weight": "1, off: the paper; LD-DPO (arXiv:2409.06411) tunes it",
        },
        metrics=reward_formulas("beta * r, or beta * f'(exp(r)) by divergence; r = sum_t (logprobs - ref_logprobs)"),
    )
