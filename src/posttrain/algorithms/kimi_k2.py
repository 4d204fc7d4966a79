"""Kimi K2's policy optimisation: regression of the log-ratio on the reward (arXiv:2507.20534, section 3.2).

    R~_i = R_i - budget_penalty where the completion exceeds token_budget
    l_i  = sum_t (logprobs - old_logprobs)                        log-ratio of the whole completion
    L    = (R~_i - mean(R~) - tau * l_i)^2

Mean over completions. At its minimum the policy is proportional to old * exp(R / tau). Its gradient is -2 tau times
the ascent direction of Kimi k1.5. ptx_coef adds a next-token loss on other data to each update.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.kimi_k15 import SQUARED_LOG_RATIO
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Count, NonNegative, Positive, settings
from posttrain.algorithms.shared import advantages_of, per_completion, weighted_completions
from posttrain.functional.baselines import center_by_group
from posttrain.functional.ratios import sequence_log_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.functional.shaping import budget_penalty
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class KimiK2(PolicyGradient):
    key = "kimi_k2"
    min_group_size = 2
    reads_token_advantages = False
    auto_correction = "bypass"
    always_needs = frozenset({"old"})
    metrics = SQUARED_LOG_RATIO

    tau: Positive = 0.1
    """Strength of the pull towards the policy at the start of the update. The gradient is proportional to tau, so with
    plain gradient descent the learning rate scales as 1 / tau."""
    token_budget: Count | None = None
    """Largest number of tokens of a completion without a penalty. None: no penalty."""
    budget_penalty: NonNegative = 1.0
    """Penalty that is subtracted from the reward of a completion beyond the budget. Read only with token_budget."""
    ptx_coef: NonNegative = 0.0
    """Weight of the next-token loss on other data, which is added to each update against forgetting. 0: none."""

    @property
    def auxiliary_coef(self) -> float:
        return self.ptx_coef

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        rewards_PG, scored_PG = experience.rewards_PG, experience.scored_PG
        if self.token_budget is not None:
            rewards_PG = rewards_PG + budget_penalty(experience.lengths_PG, self.token_budget, self.budget_penalty)
        return experience.broadcast(center_by_group(rewards_PG, scored_PG))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        log_ratio_B1 = sequence_log_ratio(outputs.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        residual_B1 = per_completion(advantages_of(batch), mask_BT) - self.tau * log_ratio_B1
        loss_BT = weighted_completions(residual_B1.square(), outputs, batch)
        loss = sequence_mean(loss_BT, mask_BT, totals.sequences)
        mean = mean_over(log_ratio_B1.square(), mask_BT.any(dim=-1, keepdim=True))
        return self.finish(loss, outputs, batch, totals, {"policy/squared_log_ratio": mean})
