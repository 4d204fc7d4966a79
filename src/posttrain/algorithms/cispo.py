"""CISPO: Clipped Importance Sampling Policy Optimization (MiniMax-M1, arXiv:2506.13585).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    w   = sg[min(rho, max_ratio)]                                 rho = exp(logprobs - old_logprobs), per token
          or sg[clip(rho, 1 - clip_low, 1 + clip_high)]           relative bounds, each of them optional
    L   = -w A logprobs

Mean over all tokens of the step. The weight is clipped, not the objective: every token keeps its gradient. The value
of the loss depends on the log-probabilities themselves and cannot be compared with PPO's loss.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.errors import ConfigError
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import weight_clip
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class CISPO(PolicyGradient):
    key = "cispo"
    min_group_size = 2
    auto_correction = "bypass"
    always_needs = frozenset({"old"})
    metrics = {"policy/weight_clip_fraction": "share of trained tokens whose rho is outside the bounds, for any A"}

    max_ratio: NonNegative | None = 5.0
    """Largest weight of a token: a bound of the ratio itself, not a distance from 1. None: use clip_low and clip_high
    instead."""
    clip_low: NonNegative | None = None
    """Lower bound of the weight, as a distance from 1; requires max_ratio = None. None: no bound, as in the paper."""
    clip_high: NonNegative | None = None
    """Upper bound of the weight, as a distance from 1; requires max_ratio = None. None: no bound."""

    def __post_init__(self) -> None:
        if self.max_ratio is not None and self.max_ratio < 1:
            raise ConfigError(
                given=f"cispo.max_ratio = {self.max_ratio}, which would scale down the weight of every token",
                allowed="a number of at least 1: it bounds the ratio itself",
                fix=f"For a ratio of at most {1 + self.max_ratio}, set max_ratio = null and clip_high = "
                f"{self.max_ratio}.",
            )
        if self.max_ratio is not None and (self.clip_low, self.clip_high) != (None, None):
            raise ConfigError(
                given=f"cispo.max_ratio = {self.max_ratio} (the default is 5) with clip_low = {self.clip_low}, "
                f"clip_high = {self.clip_high}",
                allowed="one absolute bound, max_ratio, or relative bounds, clip_low and clip_high",
                fix="Set max_ratio = null to use clip_low and clip_high, or remove clip_low and clip_high.",
            )

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Lower and upper bound of the weight; None: no bound."""
        low = None if self.clip_low is None else 1 - self.clip_low
        return low, self.max_ratio if self.clip_high is None else 1 + self.clip_high

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        weight_BT = weight_clip(ratio_BT, *self.bounds)
        loss_BT = weighted(-weight_BT * advantages_of(batch) * outputs.logprobs_BT, batch)
        loss = token_mean(loss_BT, mask_BT, totals.tokens)
        held = mean_over((weight_BT != ratio_BT).float(), mask_BT)
        return self.finish(loss, outputs, batch, totals, {"policy/weight_clip_fraction": held})
