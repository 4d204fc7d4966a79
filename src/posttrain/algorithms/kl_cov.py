"""KL-Cov: hold the tokens that make the entropy fall (The Entropy Mechanism of RL, arXiv:2505.22617).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    d   = logprobs - old_logprobs,  rho = exp(d)                  per token
    cov = (logprobs - mean(logprobs)) (A - mean(A))               means over all tokens of the update
    L   = -rho A, and + penalty * |d| for the max(1, floor(cov_share * tokens)) tokens of largest cov

Mean over all tokens of the step. There is no clip.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import Card, Need, PolicyGradient
from posttrain.algorithms.declared import biased, row
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
    key: ClassVar[str] = "kl_cov"
    min_group_size: ClassVar[int] = 2
    always_needs: ClassVar[frozenset[Need]] = frozenset({"old", "current"})

    cov_share: UnitInterval = 2e-3
    """Share of the trained tokens of an update that is held, at least one: those of largest covariance."""
    penalty: NonNegative = 1.0
    """Weight of |logprobs - old_logprobs| in the loss of the tokens that are held."""
    dynamic_sampling: bool = True
    """Replace prompts whose completions all earn the same reward by others, until the step is full."""

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
        """`[B, T]` bool: the tokens to hold, chosen among all of these rows."""
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

    card: ClassVar[Card] = Card(
        title="KL-Cov: hold the tokens that make the entropy fall",
        paper="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv:2505.22617",
        summary="The tokens whose log-probability and advantage go together most are held near the old policy.",
        choices=row("group_mean group_std token kl_cov none token_mean auto signal none"),
        use_when="The entropy collapses early and answers stop differing, while the reward has not saturated.",
        avoid_when="Each batch is used for one update: nothing has moved, and the penalty has no gradient.",
        differs=(
            "The means are those of the whole update; verl takes those of each micro-batch, so that its result depends "
            "on the split. Its defaults are a penalty of 0.1 and a share of 2e-4.",
            "Among tokens of equal covariance a draw by version, row and position decides, so that their order does "
            "not matter.",
            biased(0.893, 0.732),
        ),
        sources={
            "cov_share": "2e-3: the paper's recipe for 7B; 2e-4 for 32B",
            "penalty": "1: the paper",
            "dynamic_sampling": "on: the paper's recipe",
        },
        metrics={"policy/selected_fraction": "share of trained tokens that were chosen"},
    )
