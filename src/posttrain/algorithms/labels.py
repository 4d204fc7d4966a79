"""Code that the losses on single labelled answers share: scores, denominators and metrics. B is the number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from posttrain.algorithms.base import Algorithm, DataKind
from posttrain.algorithms.metrics import ENTROPY_METRICS, mean_over
from posttrain.algorithms.pairs import no_reference
from posttrain.algorithms.settings import settings
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.preferences import summed
from posttrain.types import Batch, Difference, Metrics, Outputs, Tensor

LABEL_METRICS = {
    "rewards/chosen": "mean of R over the desirable answers, R = beta * r, r = sum_t (logprobs - ref_logprobs)",
    "rewards/rejected": "mean of R over the undesirable answers",
    "rewards/margins": "rewards/chosen - rewards/rejected, each over the whole step",
    "logps/chosen": "mean over the desirable answers of their summed log-probability",
    "logps/rejected": "mean over the undesirable answers of their summed log-probability",
} | ENTROPY_METRICS


@settings
class LabelLoss(Algorithm):
    """A loss on answers that are labelled desirable or undesirable one by one."""

    data_kind: ClassVar[DataKind] = "labels"


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The answers of a batch with their labels. `trained_B` is false for rows without trained tokens."""

    log_ratios_B: Tensor
    """Log-ratios r(y) = sum_t (logprobs - ref_logprobs), with gradient."""
    log_probs_B: Tensor
    labels_B: Tensor
    trained_B: Tensor

    @property
    def signs_B(self) -> Tensor:
        """1 for a desirable answer, -1 for an undesirable one."""
        return 2 * self.labels_B.to(self.log_ratios_B.dtype) - 1

    def by_label(self, desirable: float, undesirable: float) -> Tensor:
        """`[B]`: the number for the row's class; 0 for a row that trains nothing."""
        number = partial(self.log_ratios_B.new_full, ())
        return masked(torch.where(self.labels_B, number(desirable), number(undesirable)), self.trained_B)

    @without_gradient
    def metrics(self, beta: float) -> Metrics:
        rewards_B = beta * self.log_ratios_B
        desirable_B, undesirable_B = self.labels_B & self.trained_B, ~self.labels_B & self.trained_B
        chosen, rejected = mean_over(rewards_B, desirable_B), mean_over(rewards_B, undesirable_B)
        return {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": Difference(chosen, rejected),
            "logps/chosen": mean_over(self.log_probs_B, desirable_B),
            "logps/rejected": mean_over(self.log_probs_B, undesirable_B),
        }


def labelled(logprobs_BT: Tensor, batch: Batch) -> Labelled:
    """Return the answers of these rows, scored against the reference."""
    if batch.labels_B is None:
        raise ConfigError(
            given="a batch without labels",
            allowed="labels_B: for each row, true if its answer is desirable",
            fix="Build it with Batch.from_labels(completion_mask_BT, labels_B, ref_logprobs_BT).",
        )
    if batch.ref_logprobs_BT is None:
        raise no_reference()
    mask_BT = batch.completion_mask_BT
    logprobs_BT = masked(logprobs_BT, mask_BT)
    return Labelled(
        log_ratios_B=summed(logprobs_BT - masked(batch.ref_logprobs_BT.detach(), mask_BT), mask_BT),
        log_probs_B=summed(logprobs_BT.detach(), mask_BT),
        labels_B=batch.labels_B,
        trained_B=mask_BT.any(dim=-1),
    )


def entropy_metric(outputs: Outputs, batch: Batch) -> Metrics:
    """Return the entropy, if the forward pass computed it."""
    if outputs.entropy_BT is None:
        return {}
    return {"entropy": mean_over(outputs.entropy_BT, batch.completion_mask_BT)}
