"""DeepSeek-V3.2's GRPO: an unbiased KL, and no gradient from off-policy negative answers (arXiv:2512.02556).

    A_i = R_i - mean(R)                                           over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    M_i = 0 where A_i < 0 and mean_t (sampling_logprobs - logprobs) > max_negative_divergence, else 1
    L   = -M_i min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Mean over the tokens of a completion, then over completions. A completion that M drops keeps its KL term and still
counts in the denominator. If the sampler reports no log-probabilities, M uses old_logprobs.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas, mean_over
from posttrain.algorithms.settings import AboveOne, KLInLoss, NonNegative, Positive, settings
from posttrain.algorithms.shared import advantages_of, kl_term, per_completion, weighted
from posttrain.functional.baselines import center_by_group
from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, off_policy_negatives, token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class DeepSeekV32(PolicyGradient):
    key = "deepseek_v32"
    min_group_size = 2
    metrics = (
        clip_formulas()
        | DUAL_CLIP_METRICS
        | {"policy/dropped_fraction": "share of completions that are dropped from the policy term: M = 0"}
    )

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Upper bound of a token's loss if its advantage is negative, as a multiple of |A|. None: no bound."""
    max_negative_divergence: Positive | None = 0.5
    """Largest mean over the tokens of log(sampler / policy), in nats, for a completion with a negative advantage. Above
    it, the completion is dropped from the policy term. None: nothing is dropped."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. With 0 no reference model is loaded."""
    kl_estimator: KLInLoss = "k3_corrected"
    """KL estimator in the loss, read only if kl_coef > 0. k3_corrected has the value of k3 and the gradient of
    KL(policy || reference)."""

    @property
    def reads_token_advantages(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.max_negative_divergence is None

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return experience.broadcast(center_by_group(experience.rewards_PG, experience.scored_PG))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        metrics: Metrics = {}
        if self.max_negative_divergence is not None:
            dropped_B1 = left_behind(outputs, batch, self.max_negative_divergence)
            loss_BT = masked(loss_BT, ~dropped_B1)
            metrics["policy/dropped_fraction"] = mean_over(dropped_B1.float(), mask_BT.any(dim=-1, keepdim=True))
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = sequence_mean(loss_BT, mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, metrics, clipped=ratio_BT)


def left_behind(outputs: Outputs, batch: Batch, bound: float) -> Tensor:
    """`[B, 1]` bool: true if M = 0. The comparison uses the sampler's own log-probabilities if there are any."""
    sampled_BT = batch.old_logprobs_BT if batch.sampling_logprobs_BT is None else batch.sampling_logprobs_BT
    mask_BT = batch.completion_mask_BT
    advantages_B1 = per_completion(advantages_of(batch), mask_BT)
    return off_policy_negatives(outputs.logprobs_BT, sampled_BT, advantages_B1, mask_BT, bound)
