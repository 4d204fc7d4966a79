"""Process reward model: a score per step of an answer, learned from step labels (arXiv:2305.20050).

    p_s = sigmoid(z_s)                                              z_s: logit at the last token of step s
    L   = mean -y_s log p_s - (1 - y_s) log(1 - p_s)                over the labelled steps of the optimizer step

A step ends with the last token of its separator. y is 1 for a right step and 0 for a wrong one, or the share of
continuations from there that reached the right answer (arXiv:2312.08935). Steps without a label and steps that the
context cuts off count neither in the sum nor in the denominator.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from posttrain.algorithms.algorithm import require_unit_interval
from posttrain.algorithms.base import Algorithm, Need
from posttrain.algorithms.declared import StepReading
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import settings
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.readings import nothing_in
from posttrain.functional.step_scores import Aggregate, binary_cross_entropy
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class ProcessRewardModel(Algorithm):
    key = "process_reward_model"
    data_kind = "steps"
    metrics = {
        "accuracy": "share of labelled steps with p > 1/2 if y > 1/2, and p <= 1/2 otherwise",
        "step/right_mean": "mean of p over the labelled steps with y > 1/2",
        "step/wrong_mean": "mean of p over the labelled steps with y <= 1/2",
        "step/count": "mean number of labelled steps, over the answers that have any",
    }

    separator: Annotated[str, Field(min_length=1)] = "\n"
    """Text that ends each step. The model reads it after each step, and answers are split into steps at it."""
    aggregate: Aggregate = "min"
    """Aggregation of step scores into the score of an answer, if the trained model is used as a reward: the worst step
    (min), the probability that all are right (prod), the last step, or the mean. The reward's own settings override it.
    """

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"scores"})

    @property
    def step_reading(self) -> StepReading:
        return StepReading(self.separator, self.aggregate)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        z_BT, y_BT, ends_BT = Outputs.of(outputs, batch).scores_BT, batch.targets_BT, batch.completion_mask_BT
        if z_BT is None or y_BT is None:
            raise ConfigError(
                given="no scores from the forward pass, or no step labels",
                allowed="a logit and a label for each token that ends a step",
                fix="Pass Outputs(logprobs_BT=..., scores_BT=...) and a batch of Batch.from_steps.",
            )
        z_BT, y_BT = masked(z_BT, ends_BT), masked(y_BT.to(z_BT.dtype), ends_BT)
        require_unit_interval(y_BT, "labels of steps")
        loss_BT = masked(binary_cross_entropy(z_BT, y_BT), ends_BT)
        return loss_BT.sum() / max(1, totals.tokens), step_metrics(z_BT, y_BT, ends_BT)


@without_gradient
def step_metrics(z_BT: Tensor, y_BT: Tensor, ends_BT: Tensor) -> Metrics:
    """Return metrics of how well the model separates right steps from wrong ones."""
    if nothing_in(ends_BT):
        return {}
    right_BT, p_BT = y_BT > 0.5, z_BT.sigmoid()
    answers = ends_BT.any(dim=-1)
    return {
        "accuracy": mean_over(((p_BT > 0.5) == right_BT).double(), ends_BT),
        "step/right_mean": mean_over(p_BT, ends_BT & right_BT),
        "step/wrong_mean": mean_over(p_BT, ends_BT & ~right_BT),
        "step/count": mean_over(ends_BT.sum(dim=-1).double(), answers),
    }
