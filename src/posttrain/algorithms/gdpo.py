"""GDPO: Group reward-Decoupled normalisation Policy Optimization, for several rewards (arXiv:2601.05242).

    z_k = (R_k - mean(R_k)) / (std(R_k) + 1e-6)                   each reward k over the G completions of one prompt
    A   = sum_k w_k z_k / (std over the batch + 1e-6)
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Mean over the tokens of a completion, then over completions. GRPO normalises the sum of the rewards instead: the
reward with the largest spread then dominates, and different combinations of rewards get the same advantage.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, KLInLoss, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, kl_term, weighted
from posttrain.errors import ConfigError
from posttrain.functional.baselines import sum_of_normalised
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class GDPO(PolicyGradient):
    key = "gdpo"
    min_group_size = 2
    always_needs = frozenset({"reward_components"})
    metrics = clip_formulas() | DUAL_CLIP_METRICS

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

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        rewards_KPG = reward_components_of(experience)
        weights_K = experience.reward_weights_K
        weights_K = rewards_KPG.new_ones(len(rewards_KPG)) if weights_K is None else weights_K
        return experience.broadcast(sum_of_normalised(rewards_KPG, weights_K, experience.scored_PG))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = sequence_mean(loss_BT, batch.completion_mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)


def reward_components_of(experience: Experience) -> Tensor:
    """`[K, P, G]`: the rewards of each reward function."""
    if experience.rewards_KPG is None:
        raise ConfigError(
            given="normalisation of each reward separately, but the experience has only their sum",
            allowed="rewards_KPG, with nan where a reward does not apply",
            fix="Pass rewards_KPG, or use grpo, which normalises the sum.",
        )
    return experience.rewards_KPG
