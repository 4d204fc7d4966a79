"""BCO: binary classifier optimisation (arXiv:2404.04656).

    R(y)  = beta * sum_t (logprobs - ref_logprobs)
    delta = (mean of R over desirable answers + mean over undesirable answers) / 2            over all steps so far
    L     = -log sigmoid(R(y) - delta) if desirable, -log sigmoid(delta - R(y)) if not

Mean over the answers of the step. The loss trains a classifier whose logit is the reward. delta centres the two
classes around 0 and carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import Need
from posttrain.algorithms.labels import LABEL_METRICS, LabelLoss, entropy_metric, labelled
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Positive, settings
from posttrain.functional.preferences import logistic
from posttrain.types import Batch, Mean, Metrics, Outputs, Tensor, Totals


@dataclass(frozen=True)
class RunningShift:
    """Sums and counts of the rewards of both classes in the run so far."""

    desirable_sum: float = 0.0
    desirable_count: float = 0.0
    undesirable_sum: float = 0.0
    undesirable_count: float = 0.0

    @property
    def delta(self) -> float:
        """Mean of the two class means (RULE 41). A class without answers so far counts as 0, the initial reward."""
        desirable = self.desirable_sum / max(1.0, self.desirable_count)
        return (desirable + self.undesirable_sum / max(1.0, self.undesirable_count)) / 2


@settings
class BCO(LabelLoss):
    key = "bco"
    metrics = LABEL_METRICS | {"delta": "the shift: the mean of the class means of R over all steps so far"}

    beta: Positive = 0.01
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    reduction: Literal["examples", "class_means"] = "examples"
    """Reduction of the loss. examples: mean over all answers; class_means: the sum of the two class means, as in the
    paper, so that a rare class counts as much as a frequent one."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference", "current"})

    def initial_state(self) -> RunningShift:
        return RunningShift()

    def next_state(self, state: RunningShift, experience: Batch) -> RunningShift:
        """Return the state with the rewards of these rows under the current policy (`current_logprobs_BT`) added."""
        assert experience.current_logprobs_BT is not None
        found = labelled(experience.current_logprobs_BT, experience).metrics(self.beta)
        chosen, rejected = found["rewards/chosen"], found["rewards/rejected"]
        assert isinstance(chosen, Mean)
        assert isinstance(rejected, Mean)
        return RunningShift(
            desirable_sum=state.desirable_sum + float(chosen.numerator),
            desirable_count=state.desirable_count + float(chosen.denominator),
            undesirable_sum=state.undesirable_sum + float(rejected.numerator),
            undesirable_count=state.undesirable_count + float(rejected.denominator),
        )

    def to_batch(self, batch: Batch, state: RunningShift) -> Batch:
        """Return the batch with the shift of a state that already includes it."""
        assert batch.ref_logprobs_BT is not None
        return replace(batch, offsets_B=batch.ref_logprobs_BT.new_full((batch.num_rows,), state.delta))

    def prepare(self, batch: Batch) -> Batch:
        """Set the shift from these rows alone, unless `to_batch` has set it from a state."""
        if batch.offsets_B is not None or batch.current_logprobs_BT is None:
            return batch
        return self.to_batch(batch, self.next_state(self.initial_state(), batch))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs = Outputs.of(outputs, batch)
        if batch.offsets_B is None:  # these rows are the whole update
            require_whole_update(batch, totals, "current_logprobs_BT")
            batch = self.prepare(replace(batch, current_logprobs_BT=outputs.logprobs_BT.detach()))
        assert batch.offsets_B is not None
        rows = labelled(outputs.logprobs_BT, batch)
        loss_B = logistic(rows.signs_B * (self.beta * rows.log_ratios_B - batch.offsets_B))
        counts = (totals.sequences,) * 2 if self.reduction == "examples" else (totals.desirable, totals.undesirable)
        loss = (rows.by_label(1 / max(1, counts[0]), 1 / max(1, counts[1])) * loss_B).sum()
        metrics = rows.metrics(self.beta) | {"delta": mean_over(batch.offsets_B, rows.trained_B)}
        return loss, metrics | entropy_metric(outputs, batch)
