"""DPO: Direct Preference Optimization (arXiv:2305.18290).

    r(y) = sum_t (logprobs - ref_logprobs)                        log-ratio of an answer y; beta r(y) is its reward
    h    = beta * (r(chosen) - r(rejected))
    L    = -log sigmoid(h)

Mean over the pairs of the step. With label_smoothing e: (1 - e) L(h) + e L(-h), which is cDPO. With a
divergence other than the reverse KL, r becomes f'(exp(r)): 1 - exp(-r) for the forward KL, log(2 sigmoid(r)) for
Jensen-Shannon, (exp((alpha - 1) r) - 1) / (alpha - 1) for alpha (arXiv:2309.16240).
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import BelowHalf, Finite, Positive, UnitInterval, settings
from posttrain.errors import ConfigError
from posttrain.functional.preferences import Divergence, divergence_score, logistic, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals

DEFAULT_ALPHA = 0.5


@settings
class DPO(PairLoss):
    key = "dpo"
    metrics = reward_formulas("beta * r, or beta * f'(exp(r)) by divergence; r = sum_t (logprobs - ref_logprobs)")

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: the reward of an answer is beta times its log-ratio, so a larger beta
    keeps the policy closer to the reference."""
    label_smoothing: BelowHalf = 0.0
    """Probability that the two labels of a pair are swapped."""
    divergence: Divergence = "reverse_kl"
    """Divergence that keeps the policy near the reference. All but reverse_kl bound the reward of an answer on one
    side."""
    alpha: Finite = DEFAULT_ALPHA
    """Order of the alpha divergence, read only if divergence = alpha. 0 is the forward KL, 1 would be reverse KL."""
    tail_weight: UnitInterval = 1.0
    """Weight of the tokens beyond the length of the shorter answer of a pair. Below 1, length counts less (LD-DPO)."""

    def __post_init__(self) -> None:
        if self.divergence != "alpha" and self.alpha != DEFAULT_ALPHA:
            raise ConfigError(
                given=f"alpha = {self.alpha:g}, which divergence = {self.divergence} does not read",
                allowed="alpha only with divergence = alpha",
                fix="Set divergence = alpha, or leave alpha out. For a likelihood term, use alpha of rpo.",
            )
        if self.divergence == "alpha" and self.alpha == 1:
            raise ConfigError(
                given="alpha = 1, for which the alpha divergence is the reverse KL",
                allowed="a number other than 1",
                fix="Set divergence = reverse_kl, or alpha = 0.5.",
            )

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        score_2N = divergence_score(pairs.log_ratios(self.tail_weight), self.divergence, self.alpha)
        chosen_N, rejected_N = reward_2N = self.beta * score_2N
        loss_N = smoothed(logistic, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
