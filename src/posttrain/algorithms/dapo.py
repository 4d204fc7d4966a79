"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (arXiv:2503.14476).

    R~_i = R_i + penalty(length_i)                                0 … -1 over the last overlong_buffer tokens
    A_i  = (R~_i - mean(R~)) / (std(R~) + 1e-6)                   over the G completions of one prompt
    rho  = exp(logprobs - old_logprobs)                           per token
    L    = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Mean over all tokens of the step. Prompts whose completions all have the same reward, before any penalty, are replaced
by new prompts until the step is full (RULE 22). The paper has no KL: kl_coef = 0, the default.
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, Count, CountOrZero, KLInLoss, NonNegative, Share, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, kl_term, weighted
from posttrain.errors import ConfigError
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.shaping import soft_overlong
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class DAPO(PolicyGradient):
    key = "dapo"
    min_group_size = 2
    metrics = clip_formulas() | DUAL_CLIP_METRICS

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.28
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high. It is
    wider than clip_low so that rare tokens can become likely ("clip-higher")."""
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
    overlong_buffer: CountOrZero | None = None
    """Number of tokens before max_completion_length over which a length penalty grows from 0 to 1. It is subtracted
    from the reward before the group statistics. None or 0: no penalty."""
    max_completion_length: Count | None = None
    """Length, in tokens, at which the penalty of overlong_buffer is complete. If unset, a run uses
    sampling.max_completion_length."""
    dynamic_sampling: bool = True
    """If true, prompts whose completions all have the same reward are replaced until the step is full."""

    def __post_init__(self) -> None:
        if self.overlong_buffer and self.max_completion_length and self.overlong_buffer > self.max_completion_length:
            raise ConfigError(
                given=f"overlong_buffer = {self.overlong_buffer}, max_completion_length = {self.max_completion_length}:"
                " even an empty completion would be penalised",
                allowed="an overlong_buffer of at most max_completion_length",
                fix=f"Set overlong_buffer = {max(1, self.max_completion_length // 5)}, the share that the paper uses.",
            )

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(self._shortened(experience) if self.overlong_buffer else experience)

    def _shortened(self, experience: Experience) -> Experience:
        """Return the experience with the length penalty in its rewards."""
        if self.max_completion_length is None:
            raise ConfigError(
                given=f"dapo.overlong_buffer = {self.overlong_buffer} without max_completion_length",
                allowed="the length at which the penalty is complete, an integer >= 1",
                fix="Use DAPO(max_completion_length=...). A run sets it from sampling.max_completion_length.",
            )
        penalty_PG = soft_overlong(experience.lengths_PG, self.max_completion_length, self.overlong_buffer or 0)
        return replace(experience, rewards_PG=experience.rewards_PG + penalty_PG)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = token_mean(loss_BT, batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
