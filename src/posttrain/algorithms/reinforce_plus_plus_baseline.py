"""REINFORCE++-baseline: group mean as the baseline, normalised over the whole batch (arXiv:2501.03262).

    A0_i = R_i - mean(R)                                          over the G completions of one prompt
    A    = (A0 - mean(A0)) / sqrt(var(A0) + 1e-8)                 over all tokens of the rollout batch
    rho  = exp(logprobs - old_logprobs)                           per token
    L    = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * k2(policy, reference)

Mean over all tokens of the step. The KL is k2, whose gradient is that of KL(policy || reference).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from posttrain.algorithms.base import Card, PolicyGradient
from posttrain.algorithms.declared import biased, row
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import discounted
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, kl_term, weighted
from posttrain.functional.baselines import center_by_group, whiten
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class ReinforcePlusPlusBaseline(PolicyGradient):
    key: ClassVar[str] = "reinforce_plus_plus_baseline"
    min_group_size: ClassVar[int] = 2

    clip_low: NonNegative = 0.2
    """Lowering a token's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 0.2
    """Raising a token's ratio above 1 + clip_high gains nothing more."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference in the loss (k2). 0 also means: no reference model is loaded."""
    gamma: UnitInterval = 1.0
    """Discount per token: before whitening, the advantage of a token is that of the completion times gamma for each
    token after it."""
    whiten_over: Literal["tokens", "sequences"] = "tokens"
    """What counts once in the mean and the variance: each token, so that long completions dominate, or each
    completion."""
    center: bool = True
    """Subtract the mean over the batch a second time, as the paper does. The mean over tokens is not 0 when lengths
    differ, so a group of equal rewards gets a small advantage; with false it is exactly 0."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        centered_BT = discounted(experience, center_by_group(experience.rewards_PG, experience.scored_PG), self.gamma)
        mean = "subtract" if self.center else "keep"
        return whiten(centered_BT, experience.scored_mask_BT, over=self.whiten_over, mean=mean)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, "k2")
        loss = token_mean(loss_BT, batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)

    card: ClassVar[Card] = Card(
        title="REINFORCE++-baseline",
        paper="REINFORCE++, arXiv:2501.03262",
        summary="The mean of the group is the baseline; the scale is that of the whole batch and not of the group.",
        choices=row("group_mean whiten_tokens token clip loss token_mean auto none none"),
        use_when="Rewards can be verified and groups are small: a standard deviation per group would be mostly noise.",
        avoid_when="Many groups have no signal and lengths differ: then set center = false, or use GRPO or Dr. GRPO.",
        differs=(
            "The KL is k2 in the loss, as in the paper; OpenRLHF keeps k1 in the reward unless use_loss is set.",
            "The variance divides by n - 1 and has 1e-8 added, as in verl; OpenRLHF divides by n and holds it at 1e-8.",
            "Without whitening the advantages are those of Dr. GRPO.",
            biased(0.908, 0.695),
        ),
        sources={
            "clip_low": "0.2: OpenRLHF, verl",
            "clip_high": "0.2: OpenRLHF, verl",
            "kl_coef": "0: verl; OpenRLHF uses 0.01",
            "gamma": "1: OpenRLHF, verl",
            "whiten_over": "tokens: the paper's implementations",
            "center": "true: the paper",
        },
        metrics=clip_formulas(),
    )
