"""Reward regression: a score per answer, learned from numeric ratings.

    squared        L = mean (s - y)^2                                   over the rated answers of the step
    standardized   the same for (y - mean) / std of the training ratings
    logistic       L = mean -y log sigmoid(s) - (1 - y) log sigmoid(-s)     y from 0 to 1

s is the output of a linear head on the hidden state of the last token of prompt and answer. The score of the trained
model is in the units of y: s, s * std + mean, or sigmoid(s).
"""

from __future__ import annotations

from typing import Literal

from posttrain.algorithms.algorithm import require_unit_interval
from posttrain.algorithms.base import Algorithm, Need
from posttrain.algorithms.metrics import mean_over, spread_over
from posttrain.algorithms.settings import settings
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.readings import nothing_in
from posttrain.functional.step_scores import binary_cross_entropy
from posttrain.types import Batch, ExplainedVariance, Metrics, Outputs, Tensor, Totals


@settings
class RewardRegression(Algorithm):
    key = "reward_regression"
    data_kind = "ratings"
    metrics = {
        "mae": "mean over the rated answers of |s - y|, in the units of the loss: standard deviations if regress is "
        "standardized; |sigmoid(s) - y| if it is logistic",
        "explained_variance": "1 - Var(y - s) / Var(y) over the step, in the same units",
        "reward/mean": "mean of s (logistic: of sigmoid(s)); reward/std is its standard deviation over the step",
        "reward/std": "standard deviation of s (logistic: of sigmoid(s)) over the step",
    }

    regress: Literal["standardized", "squared", "logistic"] = "standardized"
    """Loss to minimise. standardized: the squared distance to the rating, in standard deviations of the training data;
    squared: the squared distance to the rating itself; logistic: the cross-entropy of ratings from 0 to 1."""

    @property
    def needs(self) -> frozenset[Need]:
        scale: dict[str, frozenset[Need]] = {
            "standardized": frozenset({"standardized"}),
            "squared": frozenset(),
            "logistic": frozenset({"unit_interval"}),
        }
        return frozenset[Need]({"scores"}) | scale[self.regress]

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        scores_B, targets_B = Outputs.of(outputs, batch).scores_B, batch.targets_B
        if scores_B is None or targets_B is None:
            raise ConfigError(
                given="no scores from the forward pass, or no ratings of the rows",
                allowed="one score and one rating per row",
                fix="Pass Outputs(logprobs_BT=..., scores_B=...) and a batch of Batch.from_ratings.",
            )
        rated_B = batch.completion_mask_BT.any(dim=-1)
        scores_B, targets_B = masked(scores_B, rated_B), masked(targets_B.to(scores_B.dtype), rated_B)
        if self.regress == "logistic":
            require_unit_interval(targets_B, "ratings")
            loss_B, expected_B = binary_cross_entropy(scores_B, targets_B), scores_B.sigmoid()
        else:
            loss_B, expected_B = (scores_B - targets_B).square(), scores_B
        return masked(loss_B, rated_B).sum() / max(1, totals.sequences), rating_metrics(expected_B, targets_B, rated_B)


@without_gradient
def rating_metrics(expected_B: Tensor, targets_B: Tensor, rated_B: Tensor) -> Metrics:
    """Return metrics of the distance between scores and ratings, and of the distribution of the scores."""
    if nothing_in(rated_B):
        return {}
    error, target, score = (spread_over(x_B, rated_B) for x_B in (targets_B - expected_B, targets_B, expected_B))
    return {
        "mae": mean_over((expected_B - targets_B).abs(), rated_B),
        "explained_variance": ExplainedVariance(error, target),
        "reward/mean": mean_over(expected_B, rated_B),
        "reward/std": score,
    }
