"""SAPO: Soft Adaptive Policy Optimization (arXiv:2511.20347).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    f   = 4 / tau * sigmoid(tau (rho - 1))                        tau_pos where A > 0, tau_neg elsewhere
    L   = -f A

Mean over the tokens of a completion, then over completions. In place of a clip the gradient fades out: its weight
4 p (1 - p) rho with p = sigmoid(tau (rho - 1)) is 1 at rho = 1, and falls on both sides, the faster the larger tau.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card, Need, PolicyGradient
from posttrain.algorithms.declared import biased, row
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Positive, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.functional.trust_regions import soft_gate
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class SAPO(PolicyGradient):
    key: ClassVar[str] = "sapo"
    min_group_size: ClassVar[int] = 2
    always_needs: ClassVar[frozenset[Need]] = frozenset({"old"})

    tau_pos: Positive = 1.0
    """How fast the gradient fades as the ratio leaves 1, for tokens with a positive advantage."""
    tau_neg: Positive = 1.05
    """The same for negative advantages: faster, because lowering one token raises all others of the vocabulary."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT, advantages_BT = batch.completion_mask_BT, advantages_of(batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        gate_BT = soft_gate(ratio_BT, advantages_BT, self.tau_pos, self.tau_neg)
        loss = sequence_mean(weighted(-gate_BT * advantages_BT, batch), mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, {"policy/gate_mean": mean_over(gate_BT, mask_BT)})

    card: ClassVar[Card] = Card(
        title="SAPO: Soft Adaptive Policy Optimization",
        paper="Soft Adaptive Policy Optimization, arXiv:2511.20347",
        summary="A smooth gate in place of the clip: tokens far from the old policy count less, none is cut off.",
        choices=row("group_mean group_std token soft_gate none sequence_mean auto none none"),
        use_when="A batch is used for several updates and a hard clip throws too many tokens away, as with mixtures of "
        "experts.",
        avoid_when="Each batch is used for one update: then it is GRPO, as no ratio leaves 1.",
        differs=(
            "Mean per completion, as in the paper, TRL and verl (which ignores its setting for the mean); AReaL "
            "averages over all tokens.",
            "There is no share of clipped tokens to log; policy/gate_mean is 2 / tau where nothing has moved.",
            biased(0.897, 0.588),
        ),
        sources={"tau_pos": "1.0: the paper", "tau_neg": "1.05: the paper"},
        metrics={"policy/gate_mean": "mean of f over the trained tokens"},
    )
