"""Clip-Cov: no gradient for tokens that make the entropy fall (The Entropy Mechanism of RL, arXiv:2505.22617).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    cov = (logprobs - mean(logprobs)) (A - mean(A))               means over all tokens of the update
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), or 0 for the tokens chosen

Mean over all tokens of the step. A random draw chooses max(1, floor(cov_share * tokens)) of the tokens that are not
clipped and whose cov is between cov_low and cov_high. It depends on seed, version, row and position (RULE 24).
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas, mean_over
from posttrain.algorithms.settings import Finite, NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, draw_for, group_normalized, weighted
from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, stopped_by_clip, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import clip_cov, covariance
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class ClipCov(PolicyGradient):
    key = "clip_cov"
    min_group_size = 2
    always_needs = frozenset({"current"})
    metrics = {"policy/selected_fraction": "share of trained tokens that were chosen"} | clip_formulas()

    clip_low: NonNegative = 1.0
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low. 1: no
    bound."""
    clip_high: NonNegative = 1.0
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    cov_low: Finite = 1.0
    """Lower bound of the covariance: the draw considers only tokens with a larger one."""
    cov_high: Finite = 5.0
    """Upper bound of the covariance: the draw considers only tokens with a smaller one."""
    cov_share: UnitInterval = 2e-4
    """Share of the trained tokens of an update to draw. At least one token is drawn if any token is eligible, and never
    more than are eligible."""
    seed: int = 0
    """Seed of the draw."""
    dynamic_sampling: bool = True
    """If true, prompts whose completions all have the same reward are replaced until the step is full."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def prepare(self, batch: Batch) -> Batch:
        batch = super().prepare(batch)
        if batch.current_logprobs_BT is None:
            return batch
        outputs, started = self.start(batch.current_logprobs_BT, batch)
        return replace(batch, selected_BT=self._select(outputs.logprobs_BT, started))

    def _select(self, logprobs_BT: Tensor, batch: Batch) -> Tensor:
        """`[B, T]` bool: the tokens that get no gradient, chosen among all tokens of these rows."""
        advantages_BT, mask_BT = advantages_of(batch), batch.completion_mask_BT
        ratio_BT = token_ratio(logprobs_BT, batch.old_logprobs_BT)
        return clip_cov(
            covariance(logprobs_BT, advantages_BT, mask_BT),
            ~stopped_by_clip(ratio_BT, advantages_BT, self.clip_low, self.clip_high),
            mask_BT,
            cov_low=self.cov_low,
            cov_high=self.cov_high,
            share=self.cov_share,
            draw_BT=draw_for(batch, self.seed),
        )

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        chosen_BT, mask_BT = batch.selected_BT, batch.completion_mask_BT
        if chosen_BT is None:
            require_whole_update(batch, totals, "current_logprobs_BT")
            chosen_BT = self._select(outputs.logprobs_BT.detach(), batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss = token_mean(masked(weighted(loss_BT, batch), ~chosen_BT), mask_BT, totals.tokens)
        share = mean_over(chosen_BT.float(), mask_BT)
        return self.finish(loss, outputs, batch, totals, {"policy/selected_fraction": share}, clipped=ratio_BT)
