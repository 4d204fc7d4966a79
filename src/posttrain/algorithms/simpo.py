"""SimPO: simple preference optimisation (arXiv:2405.14734).

    a(y) = sum_t logprobs / |y|                                   mean log-probability of an answer y
    h    = beta * (a(chosen) - a(rejected)) - gamma
    L    = -(1 - label_smoothing) log sigmoid(h) - label_smoothing log sigmoid(-h)

Mean over the pairs of the step. It needs no reference; gamma is the margin by which the chosen answer should win.
With alpha, a becomes (1 - exp(-alpha a)) / alpha (AlphaPO, arXiv:2501.03884).
"""

from __future__ import annotations

from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import BelowHalf, Finite, NonNegative, Positive, settings
from posttrain.errors import ConfigError
from posttrain.functional.preferences import logistic, shaped_reward, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals

DEFAULT_RATIO = 0.25


@settings
class SimPO(PairLoss):
    key = "simpo"
    reference_free = True
    metrics = reward_formulas("beta * a, a = mean over the answer of logprobs (shaped by alpha)")

    beta: Positive = 2.0
    """Scale of the margin, the small difference of two mean log-probabilities. Usual values: 2 to 10."""
    gamma: NonNegative | None = None
    """Target margin, in units of beta * mean log-probability. None: gamma_beta_ratio * beta."""
    gamma_beta_ratio: NonNegative | None = None
    """Target margin as a multiple of beta: gamma = ratio * beta. None: gamma, or 0.25 if gamma is none too."""
    alpha: Finite = 0.0
    """Shape of the reward (AlphaPO). 0: the mean log-probability itself; above 0: unlikely answers weigh more."""

    label_smoothing: BelowHalf = 0.0
    """Probability that the two labels of a pair are swapped."""

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma_beta_ratio is not None:
            raise ConfigError(
                given=f"gamma = {self.gamma} and gamma_beta_ratio = {self.gamma_beta_ratio}",
                allowed="one of them: gamma = gamma_beta_ratio * beta",
                fix=f"Leave one out. This ratio means gamma = {self.gamma_beta_ratio * self.beta:g}.",
            )

    @property
    def target_margin(self) -> float:
        if self.gamma is not None:
            return self.gamma
        return self.beta * (DEFAULT_RATIO if self.gamma_beta_ratio is None else self.gamma_beta_ratio)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * shaped_reward(pairs.mean_log_probs(), self.alpha)
        loss_N = smoothed(logistic, chosen_N - rejected_N - self.target_margin, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)
