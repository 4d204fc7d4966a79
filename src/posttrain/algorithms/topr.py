"""TOPR: Tapered Off-Policy REINFORCE (arXiv:2503.14286).

    A_i = R_i - baseline                                          a constant
    q_i = exp(sum_t (logprobs - sampling_logprobs))               ratio of policy to sampler for the whole completion
    w_i = 1 where A_i >= 0,  min(q_i, 1) where A_i < 0            a weight: no gradient flows through it
    L   = -w_i A_i * sum_t logprobs

Sum over the tokens of a completion, mean over completions. Good answers are imitated, however old they are. Bad
answers are pushed away only as far as the policy still samples them.
"""

from __future__ import annotations

import torch

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Finite, settings
from posttrain.algorithms.shared import advantages_of, per_completion, weighted
from posttrain.functional.masks import without_gradient
from posttrain.functional.ratios import sequence_product_ratio
from posttrain.functional.reductions import sequence_sum
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class TOPR(PolicyGradient):
    key = "topr"
    reads_token_advantages = False
    auto_correction = "bypass"
    always_needs = frozenset({"old"})
    metrics = {"policy/weight_mean": "mean over the completions of w: 1 where none is truncated"}

    baseline: Finite = 0.0
    """Constant that is subtracted from every reward. It balances positive against negative completions and matters
    off-policy: with rewards of 0 and 1, a baseline of 0 learns from correct answers alone."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        return experience.broadcast(experience.rewards_PG - self.baseline)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT, advantages_BT = batch.completion_mask_BT, advantages_of(batch)
        weight_B1 = truncated_negatives(outputs, batch)
        loss_BT = weighted(-weight_B1 * advantages_BT * outputs.logprobs_BT, batch)
        loss = sequence_sum(loss_BT, mask_BT, totals.sequences)
        mean = mean_over(weight_B1, mask_BT.any(dim=-1, keepdim=True))
        return self.finish(loss, outputs, batch, totals, {"policy/weight_mean": mean})


@without_gradient
def truncated_negatives(outputs: Outputs, batch: Batch) -> Tensor:
    """`[B, 1]`: 1 for a completion with A >= 0, min(q, 1) for one with A < 0.

    For a token without a finite log-probability of the sampler, q uses the policy before the update. A token that a
    correction rejects is not part of q (RULE 25).
    """
    mask_BT, sampled_BT = batch.completion_mask_BT, batch.old_logprobs_BT
    if batch.sampling_logprobs_BT is not None:
        before_BT = outputs.logprobs_BT if sampled_BT is None else sampled_BT
        sampled_BT = torch.where(batch.sampling_logprobs_BT.isfinite(), batch.sampling_logprobs_BT, before_BT)
    kept_BT = mask_BT if batch.correction_BT is None else mask_BT & (batch.correction_BT != 0)
    ratio_B1 = sequence_product_ratio(outputs.logprobs_BT, sampled_BT, kept_BT)
    negative_B1 = per_completion(advantages_of(batch), mask_BT) < 0
    return torch.where(negative_B1, ratio_B1.clamp(max=1), torch.ones_like(ratio_B1))
