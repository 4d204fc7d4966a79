"""Reward model: a score per answer, learned from which of two answers was preferred (arXiv:2203.02155).

    p(chosen > rejected) = sigmoid(r_w - r_l)                                     Bradley and Terry 1952
    L = -log sigmoid(r_w - r_l - margin) + center_coef * (r_w + r_l)^2            mean over the pairs of the step

r_w and r_l are the scores of the chosen and the rejected answer: a linear head on the hidden state of the last token
of prompt and answer, which is the EOS of an answer that ended. Only their difference is learned from, so that without
center_coef the scores of a prompt are determined up to a constant.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from posttrain.algorithms.base import Algorithm, Card, DataKind, Need
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import NonNegative, settings
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.preferences import bradley_terry
from posttrain.types import Batch, Max, Metrics, Min, Outputs, Tensor, Totals, whole_pairs


@settings
class RewardModel(Algorithm):
    key: ClassVar[str] = "reward_model"
    data_kind: ClassVar[DataKind] = "pairs"

    margin: NonNegative | Literal["data"] = 0.0
    """By how much the chosen answer should score higher before its pair counts as learned: one number for all pairs,
    or data, the column `margin` of each row."""
    center_coef: NonNegative = 0.0
    """Weight of the square of the sum of the two scores, which keeps scores near 0 on average. 0 is off."""

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
        loss_N = bradley_terry(chosen_N, rejected_N, self._margin(batch)[chosen])
        if self.center_coef:
            loss_N = loss_N + self.center_coef * (chosen_N + rejected_N).square()
        return masked(loss_N, whole_N).sum() / max(1, totals.pairs), score_metrics(chosen_N, rejected_N, whole_N)

    def _margin(self, batch: Batch) -> Tensor:
        if self.margin != "data":
            return torch.tensor(self.margin, device=batch.groups_B.device).expand(batch.num_rows)
        if batch.margins_B is None:
            raise ConfigError(
                given="reward_model.margin = 'data', but the pairs have no margins",
                allowed="a number, or data with a column margin",
                fix="Set algorithm.margin = 0, or add the column.",
            )
        return batch.margins_B

    card: ClassVar[Card] = Card(
        title="Reward model",
        paper="arXiv:2203.02155; margins arXiv:2307.09288; centring arXiv:2312.09244",
        summary="Learn a score from pairs of answers of which one was preferred, to train a policy against it.",
        choices={
            "score": "linear head on the hidden state of the last token",
            "link": "log sigmoid (Bradley-Terry)",
            "margin": "none, one number, or one per pair",
            "aggregation": "mean over the pairs of the step",
        },
        use_when="What makes an answer good cannot be checked by a program, but can be told by comparing two answers.",
        avoid_when="The answer can be verified: a learned reward can be gamed, a verifier much less.",
        differs=(
            "The score is read at the last real token, found from the length of the row; transformers looks for the "
            "last token that is not the pad token, which is another one where an answer ends with that token.",
            "TRL's RewardTrainer uses a column `margin` whenever there is one; here it is asked for by name.",
            "The loss is computed as softplus(r_l - r_w + margin), which cannot overflow; log(1 + exp(...)) can.",
        ),
        sources={
            "margin": "0: InstructGPT, TRL, OpenRLHF; Llama 2 takes 1, 2/3, 1/3 and 0 by strength of the preference",
            "center_coef": "0: TRL and OpenRLHF; 0.01 in arXiv:2312.09244",
        },
        metrics={
            "accuracy": "share of pairs with r_w > r_l; equal scores are wrong",
            "margin": "mean over the pairs of r_w - r_l",
            "reward/chosen_mean": "mean of r_w; chosen_min and chosen_max are its bounds over the step",
            "reward/chosen_min": "smallest r_w of the step",
            "reward/chosen_max": "largest r_w of the step",
            "reward/rejected_mean": "mean of r_l; rejected_min and rejected_max are its bounds over the step",
            "reward/rejected_min": "smallest r_l of the step",
            "reward/rejected_max": "largest r_l of the step",
        },
    )


@without_gradient
def score_metrics(chosen_N: Tensor, rejected_N: Tensor, whole_N: Tensor) -> Metrics:
    """Which answer of a pair scored higher, by how much, and where the scores lie."""
    if not whole_N.any():
        return {}
    metrics: Metrics = {
        "accuracy": mean_over((chosen_N > rejected_N).double(), whole_N),
        "margin": mean_over(chosen_N - rejected_N, whole_N),
    }
    for name, scores_N in (("chosen", chosen_N), ("rejected", rejected_N)):
        metrics[f"reward/{name}_mean"] = mean_over(scores_N, whole_N)
        metrics[f"reward/{name}_min"] = Min(float(scores_N[whole_N].min()))
        metrics[f"reward/{name}_max"] = Max(float(scores_N[whole_N].max()))
    return metrics
