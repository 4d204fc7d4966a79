"""DPPO: Divergence Proximal Policy Optimization (arXiv:2602.04879).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    p   = exp(logprobs)                                           the probability of the sampled token
    D   = |p - p_old|, or the KL between (p_old, 1 - p_old) and (p, 1 - p)
    M   = 0 where A > 0, p > p_old and D > divergence_high, or A <= 0, p < p_old and D > divergence_low; else 1
    L   = -sg[min(rho, max_ratio) M] A logprobs                   rho = exp(logprobs - old_logprobs)

Mean over all tokens of the step. A ratio says little about how far a distribution has moved. If a probability rises
from 1e-5 to 1e-3, the ratio is 100, but little has changed. If it falls from 0.99 to 0.8, the ratio is 0.8, but much
has changed. So DPPO bounds the change of the probability, not the ratio.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import band_formulas, band_metrics, mean_over
from posttrain.algorithms.settings import AboveOne, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import Divergence, divergence_mask, moved_too_far, weight_clip
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class DPPO(PolicyGradient):
    key = "dppo"
    min_group_size = 2
    auto_correction = "bypass"
    always_needs = frozenset({"old"})
    metrics = band_formulas(
        "trained tokens", "p < p_old and D > divergence_low", "p > p_old and D > divergence_high"
    ) | {"policy/weight_clip_fraction": "share of trained tokens with rho > max_ratio"}

    divergence: Divergence = "tv"
    """Measure of the change of the sampled token's probability. tv: |p - p_old|; kl: the binary KL."""
    divergence_low: NonNegative = 0.15
    """Largest divergence of a token that becomes less likely, if its advantage is not positive. A token beyond it gets
    no gradient. With kl use about 0.05."""
    divergence_high: NonNegative = 0.15
    """Largest divergence of a token that becomes more likely, if its advantage is positive. A token beyond it gets no
    gradient. With kl use about 0.05."""
    max_ratio: AboveOne = 20.0
    """Largest weight of a token."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT, advantages_BT = batch.completion_mask_BT, advantages_of(batch)
        moved = (outputs.logprobs_BT, batch.old_logprobs_BT)
        bounds = (self.divergence_low, self.divergence_high, self.divergence)
        ratio_BT = token_ratio(*moved)
        weight_BT = weight_clip(ratio_BT, None, self.max_ratio) * divergence_mask(*moved, advantages_BT, *bounds)
        loss = token_mean(weighted(-weight_BT * advantages_BT * outputs.logprobs_BT, batch), mask_BT, totals.tokens)
        metrics = band_metrics(*moved_too_far(*moved, *bounds), advantages_BT, mask_BT)
        metrics["policy/weight_clip_fraction"] = mean_over((ratio_BT > self.max_ratio).float(), mask_BT)
        return self.finish(loss, outputs, batch, totals, metrics)
