"""CISPO: Clipped Importance Sampling Policy Optimization (MiniMax-M1, arXiv:2506.13585).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    w   = sg[min(rho, max_ratio)]                                 rho = exp(logprobs - old_logprobs), per token
          or sg[clip(rho, 1 - clip_low, 1 + clip_high)]           relative bounds, either of them optional
    L   = -w A logprobs

Mean over all tokens of the step. The weight is clipped, not the objective: every token keeps its gradient. The value
of the loss depends on the log-probabilities themselves and cannot be compared with that of PPO.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card, Need, PolicyGradient
from posttrain.algorithms.declared import biased, row
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
    key: ClassVar[str] = "cispo"
    min_group_size: ClassVar[int] = 2
    auto_correction: ClassVar[str] = "bypass"
    always_needs: ClassVar[frozenset[Need]] = frozenset({"old"})

    max_ratio: NonNegative | None = 5.0
    """The weight of a token is at most this: a bound of the ratio itself, not a distance from 1. None: no such bound,
    for the relative ones."""
    clip_low: NonNegative | None = None
    """With max_ratio = None: the weight is at least 1 - clip_low; None is no lower bound, as in the paper."""
    clip_high: NonNegative | None = None
    """With max_ratio = None: the weight is at most 1 + clip_high; None is no upper bound."""

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
                given=f"cispo.max_ratio = {self.max_ratio} (the default is 5) beside clip_low = {self.clip_low}, "
                f"clip_high = {self.clip_high}",
                allowed="one absolute bound, max_ratio, or relative ones, clip_low and clip_high",
                fix="Set max_ratio = null to use clip_low and clip_high, or remove those.",
            )

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The lowest and the highest weight; None is no bound."""
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

    card: ClassVar[Card] = Card(
        title="CISPO: Clipped Importance Sampling Policy Optimization",
        paper="MiniMax-M1, arXiv:2506.13585",
        summary="REINFORCE with a bounded importance weight: rare but decisive tokens are never cut off.",
        choices=row("group_mean group_std token weight_clip none token_mean auto none none"),
        use_when="A batch is used for several updates or is stale, and the tokens that PPO would clip are those that "
        "matter, such as the first steps of a reflection.",
        avoid_when="The policy must be held near the old one: nothing here stops a token that has gone too far.",
        differs=(
            "The paper tunes a relative upper bound and does not state it; the absolute bound of 5 is that of ScaleRL "
            "(arXiv:2510.13786), which divides by the standard deviation of the batch and averages over prompts.",
            "In TRL epsilon_high is the absolute bound, and without it every weight is capped at 0.2; verl's bounds "
            "are relative, 0.2 and 0.2. Here they are two settings, and an absolute bound below 1 is refused.",
            "The weight is that to the policy that sampled, so that no other correction is multiplied onto it.",
            biased(0.893, 0.732),
        ),
        sources={
            "max_ratio": "5: ScaleRL, TRL's documentation; the paper does not state its bound",
            "clip_low": "off: the paper; verl uses 0.2",
            "clip_high": "off, as max_ratio is on; verl uses 0.2",
        },
        metrics={"policy/weight_clip_fraction": "share of trained tokens whose rho is out of the bounds, whatever A"},
    )
