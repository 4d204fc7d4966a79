"""SimPO: simple preference optimisation (arXiv:2405.14734).

    a(y) = sum_t logprobs / |y|                                   mean log-probability of an answer y
    h    = beta * (a(chosen) - a(rejected)) - gamma
    L    = -(1 - label_smoothing) log sigmoid(h) - label_smoothing log sigmoid(-h)

Mean over the pairs of the step. No reference; gamma is the margin by which the chosen answer should win. With alpha,
a becomes (1 - exp(-alpha a)) / alpha (AlphaPO, arXiv:2501.03884).
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.pairs import PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import BelowHalf, Finite, NonNegative, Positive, settings
from posttrain.errors import ConfigError
from posttrain.functional.preferences import logistic, shaped_reward, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals

DEFAULT_RATIO = 0.25


@settings
class SimPO(PairLoss):
    key: ClassVar[str] = "simpo"
    reference_free: ClassVar[bool] = True

    beta: Positive = 2.0
    """Size of a margin: of the difference of two mean log-probabilities, which is small. 2 to 10."""
    gamma: NonNegative | None = None
    """Target margin, in units of beta * mean log-probability; none: from gamma_beta_ratio."""
    gamma_beta_ratio: NonNegative | None = None
    """The same as a multiple of beta, gamma = ratio * beta; none: from gamma, or 0.25 where that is none too."""
    alpha: Finite = 0.0
    """Shape of the reward (AlphaPO): 0 is the mean log-probability itself, above 0 unlikely answers weigh more."""

    label_smoothing: BelowHalf = 0.0
    """Probability that a label is the wrong way round."""

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma_beta_ratio is not None:
            raise ConfigError(
                given=f"gamma = {self.gamma} and gamma_beta_ratio = {self.gamma_beta_ratio}",
                allowed="one of them: gamma = gamma_beta_ratio * beta",
                fix=f"Leave one out; this ratio is gamma = {self.gamma_beta_ratio * self.beta:g}.",
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

    card: ClassVar[Card] = Card(
        title="SimPO: simple preference optimisation",
        paper="SimPO, arXiv:2405.14734",
        summary="The mean log-probability is the reward: no reference, and length does not pay.",
        choices={
            "score": "log-probability, mean over the answer",
            "reference": "no",
            "margin": "beta times the difference, minus gamma",
            "link": "log sigmoid",
            "extra": "none",
        },
        use_when="Answers differ much in length, or memory for a reference is missing.",
        avoid_when="The policy must stay near its start: nothing holds it there but a small learning rate.",
        differs=(
            "TRL's simpo_gamma is gamma, the authors' code takes the ratio; here each has its own name.",
            "TRL's CPO trainer adds a likelihood term to SimPO unless cpo_alpha = 0; there is none here.",
            "With gamma = 0 the optimum is exp(|y| (reward / beta + c)), c such that it sums to 1.",
        ),
        sources={
            "beta": "2: the authors' code; 2 to 10 in the paper, by model",
            "gamma": "none: the ratio decides; TRL 0.5, which is the same at beta 2",
            "gamma_beta_ratio": "0.25: the authors' code; 0.1 to 0.8 in the paper, by model",
            "alpha": "0: SimPO; AlphaPO takes 0.25",
            "label_smoothing": "0: the paper and the authors' code, which has the same setting; TRL's CPO likewise",
        },
        metrics=reward_formulas("beta * a, a = mean over the answer of logprobs (shaped by alpha)"),
    )
