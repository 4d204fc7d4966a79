"""Rules that a token or a completion has to keep to, or be rejected: a score, and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.errors import ConfigError
from posttrain.functional.corrections import (
    LEVELS,
    OVER,
    binary_kl_score,
    estimate_score,
    total_variation_score,
    within,
    within_second_moment,
)
from posttrain.types import Tensor

if TYPE_CHECKING:
    from posttrain.algorithms.off_policy.correction import Correction

Score = Literal[
    "token", "sequence", "geometric", "binary_kl", "mean_binary_kl", "total_variation", "mean_total_variation",
    "token_k2", "token_k3", "sum_k2", "sum_k3", "mean_k2", "mean_k3", "max_k2", "max_k3",
]  # fmt: skip


@settings
class Rule:
    """Of several that all have to hold: what a token or a completion must keep to, or be rejected."""

    key: ClassVar[str] = "correction.reject"

    score: Score
    """The ratio of a level; or a divergence: KPop's binary KL, the total variation |p - q| of the sampled token, or
    their mean over the completion; or k2 or k3 per token, or their sum, mean or largest value over the completion."""
    low: NonNegative | None = None
    """Lower bound of a ratio; none: no bound."""
    high: Positive | None = None
    """Upper bound; none: no bound."""

    def __post_init__(self) -> None:
        divergence = self.score not in RATIOS
        if (self.low, self.high) == (None, None) or (divergence and (self.low is not None or self.high is None)):
            raise ConfigError(
                given=f"correction.reject: score = {self.score}, low = {self.low}, high = {self.high}",
                allowed="high without low: the score is a divergence, never negative" if divergence else "low or high",
                fix="Set high = 0.1, for example." if divergence else "Set low = 0.999 and high = 1.001, for example.",
            )


RATIOS = ("weight", "token", "sequence", "geometric")
"""Scores that are ratios; the others are divergences."""


AGAINST_ALL_OTHERS = {"binary_kl": binary_kl_score, "total_variation": total_variation_score}
"""Scores of the sampled token against all others."""


def kept(
    rule: Correction | Rule,
    weight: Tensor,
    delta_BT: Tensor,
    corrected_BT: Tensor,
    sampling_BT: Tensor,
    mask_BT: Tensor,
) -> Tensor:
    """Bool, of the shape of the score: which tokens or completions stay."""
    if rule.score == "second_moment":
        assert rule.high is not None
        return within_second_moment(delta_BT, mask_BT, rule.high)
    if rule.score in LEVELS:
        score = LEVELS[rule.score](delta_BT, mask_BT)
    elif (of_token := rule.score.removeprefix("mean_")) in AGAINST_ALL_OTHERS:
        score = AGAINST_ALL_OTHERS[of_token](corrected_BT, sampling_BT, mask_BT)
        score = score if of_token == rule.score else OVER["mean"](score, mask_BT)
    else:
        score = weight if rule.score == "weight" else estimate_score(rule.score, delta_BT, mask_BT)
    return within(score, rule.low, rule.high)
