"""The scores by which a token or a completion is rejected, and their bounds (RULE 28)."""

from __future__ import annotations

from typing import ClassVar, Literal

from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.errors import ConfigError
from posttrain.functional.corrections import (
    binary_kl_score,
    total_variation_score,
)

Score = Literal[
    "token", "sequence", "geometric", "binary_kl", "mean_binary_kl", "total_variation", "mean_total_variation",
    "token_k2", "token_k3", "sum_k2", "sum_k3", "mean_k2", "mean_k3", "max_k2", "max_k3",
]  # fmt: skip


@settings
class Rule:
    """A bound on a score: a token or a completion that violates it is rejected. If there are several rules, all must
    hold."""

    key: ClassVar[str] = "correction.reject"

    score: Score
    """Score to bound: the ratio of a level; or a divergence, which is KPop's binary KL or the total variation |p - q|
    of the sampled token, or their mean over the completion; or k2 or k3 per token, or their sum, mean or maximum over
    the completion."""
    low: NonNegative | None = None
    """Lower bound of a ratio; none: no bound."""
    high: Positive | None = None
    """Upper bound; none: no bound."""

    def __post_init__(self) -> None:
        divergence = self.score not in RATIOS
        if (self.low, self.high) == (None, None) or (divergence and (self.low is not None or self.high is None)):
            raise ConfigError(
                given=f"correction.reject: score = {self.score}, low = {self.low}, high = {self.high}",
                allowed="high without low: a divergence is never negative" if divergence else "low or high",
                fix="Set high = 0.1, for example." if divergence else "Set low = 0.999 and high = 1.001, for example.",
            )


RATIOS = ("weight", "token", "sequence", "geometric")
"""Scores that are ratios; the others are divergences."""


AGAINST_ALL_OTHERS = {"binary_kl": binary_kl_score, "total_variation": total_variation_score}
"""Scores that compare the sampled token with all others."""
