"""GMPO: Geometric-Mean Policy Optimization (arXiv:2507.20673).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    d   = logprobs - old_logprobs                                 per token
    z   = min(d, clip_high) where A_i > 0, max(d, -clip_low) elsewhere
    L_i = -A_i * exp(mean over its tokens of z)

Mean over completions. Token log-ratios are clipped before they are averaged, so that no single token can move the
ratio of the answer far. The other tokens keep their gradient.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import band_formulas, band_metrics
from posttrain.algorithms.settings import NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, per_completion, weighted_completions
from posttrain.functional.ratios import log_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.functional.trust_regions import log_clip
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class GMPO(PolicyGradient):
    key = "gmpo"
    min_group_size = 2
    reads_token_advantages = False
    metrics = band_formulas("trained tokens", "d < -clip_low", "d > clip_high")

    clip_low: NonNegative = 0.4
    """Lower clip bound in log space: a token with A < 0 gains nothing from a log-ratio below -clip_low. 0.4 means
    ratio 0.67."""
    clip_high: NonNegative = 0.4
    """Upper clip bound in log space: a token with A > 0 gains nothing from a log-ratio above clip_high. 0.4 means
    ratio 1.49."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        d_BT = log_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        advantage_B1 = per_completion(advantages_of(batch), mask_BT)
        z_BT = log_clip(d_BT, advantage_B1, self.clip_low, self.clip_high)
        loss_B1 = -advantage_B1 * per_completion(z_BT, mask_BT).exp()
        loss = sequence_mean(weighted_completions(loss_B1, outputs, batch), mask_BT, totals.sequences)
        metrics = band_metrics(d_BT < -self.clip_low, d_BT > self.clip_high, advantage_B1, mask_BT)
        return self.finish(loss, outputs, batch, totals, metrics)
