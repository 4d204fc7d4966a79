"""Reward model: a score per answer, learned from preferences between two answers (arXiv:2203.02155).

    p(chosen > rejected) = sigmoid(r_w - r_l)                                     Bradley and Terry 1952
    L = -log sigmoid(r_w - r_l - margin) + center_coef * (r_w + r_l)^2            mean over the pairs of the step

r_w and r_l are the scores of the chosen and the rejected answer. A linear head computes a score from the hidden state
of the last token of prompt and answer, which is the EOS if the answer is complete. Without center_coef the loss
depends only on the difference, so the scores of a prompt are determined up to a constant.
"""

from __future__ import annotations

from typing import Literal

import torch

from posttrain.algorithms.base import Algorithm, Need
from posttrain.algorithms.metrics import if_any, mean_over
from posttrain.algorithms.settings import NonNegative, settings
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.preferences import bradley_terry
from posttrain.functional.readings import number, picked
from posttrain.types import Batch, Max, Metrics, Min, Outputs, Tensor, Totals, whole_pairs


@settings
class RewardModel(Algorithm):
    key = "reward_model"
    data_kind = "pairs"
    metrics = {
        "accuracy": "share of pairs with r_w > r_l; equal scores are wrong",
        "margin": "mean over the pairs of r_w - r_l",
        "reward/chosen_mean": "mean of r_w; chosen_min and chosen_max are its bounds over the step",
        "reward/chosen_min": "smallest r_w of the step",
        "reward/chosen_max": "largest r_w of the step",
        "reward/rejected_mean": "mean of r_l; rejected_min and rejected_max are its bounds over the step",
        "reward/rejected_min": "smallest r_l of the step",
        "reward/rejected_max": "largest r_l of the step",
    }

    margin: NonNegative | Literal["data"] = 0.0
    """Margin by which the chosen answer should score higher: one number for all pairs, or data, which reads it from
    the column `margin` of each row."""
    center_coef: NonNegative = 0.0
    """Weight of the squared sum of the two scores, a penalty that keeps the average score near 0. 0: no penalty."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"scores", "margins"} if self.margin == "data" else {"scores"})

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        scores_B = Outputs.of(outputs, batch).scores_B
        if scores_B is None:
            raise ConfigError(
                given="the forward pass gave no scores",
                allowed="one score per row",
                fix="Pass Outputs(logprobs_BT=..., scores_B=...).",
            )
        chosen, rejected = batch.pairs
        whole_N = whole_pairs(batch)
        chosen_N, rejected_N = masked(scores_B[chosen], whole_N), masked(scores_B[rejected], whole_N)
        loss_N = bradley_terry(chosen_N, rejected_N, self._margin(batch, scores_B.dtype)[chosen])
        if self.center_coef:
            loss_N = loss_N + self.center_coef * (chosen_N + rejected_N).square()
        return masked(loss_N, whole_N).sum() / max(1, totals.pairs), score_metrics(chosen_N, rejected_N, whole_N)

    def _margin(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        if self.margin != "data":
            return torch.full((batch.num_rows,), self.margin, dtype=dtype, device=batch.groups_B.device)
        if batch.margins_B is None:
            raise ConfigError(
                given="reward_model.margin = 'data', but the pairs have no margins",
                allowed="a number, or data with a column margin",
                fix="Set algorithm.margin = 0, or add the column.",
            )
        return batch.margins_B


@without_gradient
def score_metrics(chosen_N: Tensor, rejected_N: Tensor, whole_N: Tensor) -> Metrics:
    """Return the accuracy, the margin, and the mean, minimum and maximum of the scores."""
    return if_any(whole_N, lambda: _of_scores(chosen_N, rejected_N, whole_N))


def _of_scores(chosen_N: Tensor, rejected_N: Tensor, whole_N: Tensor) -> Metrics:
    metrics: Metrics = {
        "accuracy": mean_over((chosen_N > rejected_N).double(), whole_N),
        "margin": mean_over(chosen_N - rejected_N, whole_N),
    }
    for name, scores_N in (("chosen", chosen_N), ("rejected", rejected_N)):
        metrics[f"reward/{name}_mean"] = mean_over(scores_N, whole_N)
        metrics[f"reward/{name}_min"] = Min(number(picked(scores_N, whole_N, otherwise=torch.inf).min()))
        metrics[f"reward/{name}_max"] = Max(number(picked(scores_N, whole_N, otherwise=-torch.inf).max()))
    return metrics
