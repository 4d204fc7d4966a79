"""Tanh GRPO: the ratio bends where GRPO's is cut.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -A (1 + width tanh((rho - 1) / width))

Mean over the tokens of a completion, then over completions.
"""

from posttrain.algorithms import Card, PolicyGradient
from posttrain.algorithms.declared import row
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Positive, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class TanhGRPO(PolicyGradient):
    key = "tanh_grpo"
    min_group_size = 2
    always_needs = frozenset({"old"})
    card = Card(
        title="Tanh GRPO",
        paper="Acme, internal note 7",
        summary="A ratio that bends in place of one that is cut.",
        choices=row("group_mean group_std token tanh none sequence_mean auto none none"),
        use_when="A batch is used for several updates and no token should lose its gradient.",
        avoid_when="Each batch is used for one update: then it is GRPO.",
        sources={"width": "0.2: GRPO's clip"},
        metrics={"policy/bent": "mean of |rho - 1 - width tanh((rho - 1) / width)| over the trained tokens"},
    )

    width: Positive = 0.2
    """How far the ratio can seem to be from 1."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT, distance_BT = batch.completion_mask_BT, token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT) - 1
        bent_BT = self.width * (distance_BT / self.width).tanh()
        loss = sequence_mean(weighted(-(1 + bent_BT) * advantages_of(batch), batch), mask_BT, totals.sequences)
        return self.finish(
            loss, outputs, batch, totals, {"policy/bent": mean_over((distance_BT - bent_BT).abs(), mask_BT)}
        )
