"""KL-Cov: a penalty on tokens that make the entropy fall (The Entropy Mechanism of RL, arXiv:2505.22617).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    d   = logprobs - old_logprobs,  rho = exp(d)                  per token
    cov = (logprobs - mean(logprobs)) (A - mean(A))               means over all tokens of the update
    L   = -rho A, and + penalty * |d| for the max(1, floor(cov_share * tokens)) tokens of largest cov

Mean over all tokens of the step. There is no clip.
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, draw_for, group_normalized, weighted
from posttrain.functional.masks import masked
from posttrain.functional.ratios import log_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import covariance, kl_cov
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class KLCov(PolicyGradient):
    key = "kl_cov"
    min_group_size = 2
    always_needs = frozenset({"old", "current"})
    metrics = {"policy/selected_fraction": "share of trained tokens that were chosen"}

    cov_share: UnitInterval = 2e-3
    """Share of the trained tokens of an update, those with the largest covariance, that get the penalty. At least one
    token gets it."""
    penalty: NonNegative = 1.0
    """Weight of |logprobs - old_logprobs| in the loss of these tokens."""
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
        """`[B, T]` bool: the tokens that get the penalty, chosen among all tokens of these rows."""
        mask_BT = batch.completion_mask_BT
        covariance_BT = covariance(logprobs_BT, advantages_of(batch), mask_BT)
        return kl_cov(covariance_BT, mask_BT, self.cov_share, draw_for(batch, seed=0))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        chosen_BT, mask_BT = batch.selected_BT, batch.completion_mask_BT
        if chosen_BT is None:
            require_whole_update(batch, totals, "current_logprobs_BT")
            chosen_BT = self._select(outputs.logprobs_BT.detach(), batch)
        d_BT = log_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        held_BT = self.penalty * masked(d_BT.abs(), chosen_BT)
        loss = token_mean(weighted(-advantages_of(batch) * d_BT.exp(), batch) + held_BT, mask_BT, totals.tokens)
        share = mean_over(chosen_BT.float(), mask_BT)
        return self.finish(loss, outputs, batch, totals, {"policy/selected_fraction": share})
