"""On-policy distillation: the student samples, and the teacher rates each sampled token (arXiv:2306.08543).

    A_t = coef * log(teacher / old policy)                        for the sampled token alone: no return, no discount
    L   = -A_t * logprobs

Mean over all tokens of the step. Its expected gradient equals the gradient of the reverse KL(student || teacher) at
each position, over the prefixes that the student samples. With clip_low and clip_high the token ratio is clipped as
in PPO, which is needed only with several updates per batch. Rewards are optional: if there are any, they are logged.
"""

from __future__ import annotations

from typing import Literal

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas, mean_over
from posttrain.algorithms.returns import teacher_log_ratio
from posttrain.algorithms.settings import Finite, NonNegative, Positive, settings
from posttrain.algorithms.shared import advantages_of, refuse_half_a_clip, weighted
from posttrain.errors import ConfigError
from posttrain.functional.kl import k1
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class Distillation(PolicyGradient):
    key = "distillation"
    learns_from_rewards = False
    always_needs = frozenset({"teacher", "old_for_advantages"})
    metrics = clip_formulas() | {
        "teacher/reverse_kl": "mean over the trained tokens of logprobs - teacher_logprobs, at most -floor",
        "teacher/floored_fraction": "share of trained tokens whose log(teacher / old policy) was below the floor",
    }

    divergence: Literal["reverse_kl", "forward_kl", "k3", "gjsd"] = "reverse_kl"
    """Divergence to minimise. Tokens sampled by the student only support reverse_kl; other values are refused."""
    coef: Positive = 1.0
    """Factor that multiplies the advantages."""
    floor: Finite = -10.0
    """Lower bound of log(teacher / policy) per token, because a teacher may give a token probability 0."""
    clip_low: NonNegative | None = None
    """Lower clip bound of the token ratio, as a distance from 1. None: no ratio."""
    clip_high: NonNegative | None = None
    """Upper clip bound, as a distance from 1. Set both bounds or neither."""

    def __post_init__(self) -> None:
        refuse_half_a_clip(self.clip_low, self.clip_high)
        if self.divergence != "reverse_kl":
            raise ConfigError(
                given=f"divergence = {self.divergence!r}, which sampled tokens cannot minimise: it needs the "
                "teacher's whole distribution, or has the gradient of another divergence",
                allowed="reverse_kl",
                fix="Set divergence = reverse_kl.",
            )

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        return self.coef * teacher_log_ratio(experience, self.floor)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT, advantages_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT), advantages_of(batch)
        if self.clip_low is None or self.clip_high is None:
            loss_BT = -advantages_BT * outputs.logprobs_BT
        else:
            loss_BT = clipped_surrogate(ratio_BT, advantages_BT, self.clip_low, self.clip_high)
        mask_BT = batch.completion_mask_BT
        loss = token_mean(weighted(loss_BT, batch), mask_BT, totals.tokens)
        floored_BT = advantages_BT <= self.coef * advantages_BT.new_tensor(self.floor)  # rounded as the advantages are
        metrics: Metrics = {"teacher/floored_fraction": mean_over(floored_BT.float(), mask_BT)}
        if batch.teacher_logprobs_BT is not None:
            kl_BT = k1(outputs.logprobs_BT, batch.teacher_logprobs_BT).clamp(max=-self.floor)
            metrics["teacher/reverse_kl"] = mean_over(kl_BT, mask_BT)
        return self.finish(loss, outputs, batch, totals, metrics, clipped=ratio_BT)
