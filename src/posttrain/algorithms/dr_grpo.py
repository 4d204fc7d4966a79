"""Dr. GRPO: GRPO Done Right, without its two biased divisions (arXiv:2503.20783).

    A_i = R_i - mean(R)                                           over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Sum over the tokens of a completion, divided by the constant max_completion_length, then mean over completions.
The paper has no KL: kl_coef = 0, the default.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, Count, KLInLoss, NonNegative, Share, settings
from posttrain.algorithms.shared import advantages_of, kl_term, weighted
from posttrain.errors import ConfigError
from posttrain.functional.baselines import center_by_group
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import fixed_length_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class DrGRPO(PolicyGradient):
    key = "dr_grpo"
    min_group_size = 2
    metrics = clip_formulas() | DUAL_CLIP_METRICS

    max_completion_length: Count | None = None
    """Constant that divides the token sum of a completion. It must not depend on the batch. If unset, a run uses
    sampling.max_completion_length."""
    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Upper bound of a token's loss if its advantage is negative, as a multiple of |A|. None: no bound."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. With 0 no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """KL estimator in the loss, read only if kl_coef > 0. k3 has the gradient of the forward KL(reference || policy).
    A `_corrected` estimator has the same value and the unbiased gradient of KL(policy || reference)."""
    top_entropy_quantile: Share = 1.0
    """Share of the tokens of an update, those with the largest entropy, that have a policy term. The denominator still
    counts all tokens. 1: all tokens; arXiv:2506.01939 uses 0.2."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return experience.broadcast(center_by_group(experience.rewards_PG, experience.scored_PG))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        if self.max_completion_length is None:
            raise ConfigError(
                given="dr_grpo without max_completion_length",
                allowed="the constant length that token sums are divided by, an integer >= 1",
                fix="Use DrGRPO(max_completion_length=...). A run sets it from sampling.max_completion_length.",
            )
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = fixed_length_mean(loss_BT, batch.completion_mask_BT, totals.sequences, self.max_completion_length)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
