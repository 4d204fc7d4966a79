"""KTO: Kahneman-Tversky optimisation (arXiv:2402.01306).

    r(y) = sum_t (logprobs - ref_logprobs)
    z0   = max(0, mean_j r(y'_j))                                 y'_j: another row's answer to the prompt of row j
    v(y) = sigmoid(beta * (r(y) - z0)) if desirable, sigmoid(beta * (z0 - r(y))) if not
    L    = weight(label) * (1 - v(y))

Mean over the answers of the step. z0 estimates KL(policy || reference) over the whole step and carries no gradient.
The value of an answer depends on its distance from z0, and gains and losses both saturate.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import Need
from posttrain.algorithms.labels import LABEL_METRICS, LabelLoss, entropy_metric, labelled
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.errors import ConfigError
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class KTO(LabelLoss):
    key = "kto"
    metrics = LABEL_METRICS | {"kl": "z0, the reference point of the step"}

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    desirable_weight: NonNegative = 1.0
    """Weight of desirable answers. If the classes differ in size, choose weights so that desirable_weight * number of
    desirable answers is 1 to 4/3 times the same product for the undesirable ones."""
    undesirable_weight: NonNegative = 1.0
    """Weight of undesirable answers."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference", "mismatched"})

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with the reference point z0, one number for all rows of the update (RULE 40)."""
        return replace(batch, offsets_B=reference_point(batch).expand(batch.num_rows))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs = Outputs.of(outputs, batch)
        if batch.offsets_B is None:  # these rows are the whole update
            require_whole_update(batch, totals, "mismatched_log_ratios_B")
            batch = self.prepare(batch)
        assert batch.offsets_B is not None
        rows = labelled(outputs.logprobs_BT, batch)
        value_B = torch.sigmoid(self.beta * rows.signs_B * (rows.log_ratios_B - batch.offsets_B))
        loss_B = rows.by_label(self.desirable_weight, self.undesirable_weight) * (1 - value_B)
        metrics = rows.metrics(self.beta) | {"kl": mean_over(batch.offsets_B, rows.trained_B)}
        return loss_B.sum() / max(1, totals.sequences), metrics | entropy_metric(outputs, batch)


def reference_point(batch: Batch) -> Tensor:
    """`[]` max(0, mean of the mismatched log-ratios of these rows). Rows without one (NaN) are not counted."""
    if batch.num_rows < 2:
        raise ConfigError(
            given="kto with a step of one row: no other row can supply a mismatched answer to its prompt",
            allowed="at least 2 rows per step; a usable reference point takes some dozens",
            fix="Raise the number of rows per step.",
        )
    ratios_B = batch.mismatched_log_ratios_B
    mean = None if ratios_B is None else ratios_B.detach().nanmean()
    if mean is None or not mean.isfinite():
        raise ConfigError(
            given="kto without finite log-ratios of mismatched answers; its reference point is their mean",
            allowed="mismatched_log_ratios_B: log(policy / reference) of another row's answer to each row's prompt",
            fix="Pass Batch.from_labels(..., mismatched_log_ratios_B=...); zeros make it the unpaired APO-zero.",
        )
    return mean.clamp(min=0)
