"""SAPO: Soft Adaptive Policy Optimization (arXiv:2511.20347).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    f   = 4 / tau * sigmoid(tau (rho - 1))                        tau_pos where A > 0, tau_neg elsewhere
    L   = -f A

Mean over the tokens of a completion, then over completions. The gradient fades out instead of being clipped: its
weight is 4 p (1 - p) rho with p = sigmoid(tau (rho - 1)). The factor 4 p (1 - p), relative to the unclipped ratio, is
1 at rho = 1 and falls on both sides, faster for larger tau. The product with rho first rises above rho = 1 (for
tau = 1 to at most 1.57, near rho = 2), then falls to 0.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Positive, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.functional.trust_regions import soft_gate
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class SAPO(PolicyGradient):
    key = "sapo"
    min_group_size = 2
    always_needs = frozenset({"old"})
    metrics = {"policy/gate_mean": "mean of f over the trained tokens"}

    tau_pos: Positive = 1.0
    """Temperature of the gate for tokens with a positive advantage: larger values let the gradient fade faster as the
    ratio leaves 1."""
    tau_neg: Positive = 1.05
    """Temperature of the gate for all other tokens. Its default is larger, because lowering the probability of one
    token raises that of every other token of the vocabulary."""

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
