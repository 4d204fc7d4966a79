"""Kimi k1.5's policy optimisation: REINFORCE with a squared penalty on the log-ratio (arXiv:2501.12599, section 2.3).

    R~_i = R_i + length_coef * length reward                      relative to the other answers to the prompt
    l_i  = sum_t (logprobs - old_logprobs)                        log-ratio of the whole completion
    L    = -(R~_i - mean(R~)) * sum_t logprobs  +  tau / 2 * l_i^2

Mean over completions. This is a gradient step towards the policy that is proportional to old * exp(R / tau), on
samples of the old policy. There is no ratio and no clip; the penalty with weight tau limits the step.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.settings import Finite, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, weighted
from posttrain.functional.baselines import center_by_group, reaches
from posttrain.functional.ratios import sequence_log_ratio
from posttrain.functional.reductions import sequence_mean, sequence_sum
from posttrain.functional.shaping import kimi_length_reward
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals

SQUARED_LOG_RATIO = {
    "policy/squared_log_ratio": "mean over the completions of l^2, l = sum_t (logprobs - old_logprobs)"
}


@settings
class KimiK15(PolicyGradient):
    key = "kimi_k15"
    min_group_size = 2
    auto_correction = "bypass"
    always_needs = frozenset({"old"})
    metrics = SQUARED_LOG_RATIO

    tau: NonNegative = 0.1
    """Strength of the pull towards the policy at the start of the update."""
    length_coef: NonNegative = 0.0
    """Weight of the length reward, between 1/2 for the shortest correct answer to a prompt and -1/2 for the longest
    answer. Enable it once the model solves the task."""
    correct_at: Finite = 1.0
    """Reward from which a completion counts as correct. Read only if length_coef > 0."""

    @property
    def correct_from(self) -> float | None:
        return self.correct_at if self.length_coef else None

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        rewards_PG, scored_PG = experience.rewards_PG, experience.scored_PG
        if self.length_coef:
            correct_PG = reaches(rewards_PG, self.correct_at)
            bonus_PG = kimi_length_reward(experience.lengths_PG, correct_PG, scored_PG)
            rewards_PG = rewards_PG + self.length_coef * bonus_PG
        return experience.broadcast(center_by_group(rewards_PG, scored_PG))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        square_B1 = sequence_log_ratio(outputs.logprobs_BT, batch.old_logprobs_BT, mask_BT).square()
        loss_BT = weighted(-advantages_of(batch) * outputs.logprobs_BT, batch)
        pull = sequence_mean((self.tau / 2 * square_B1).expand(mask_BT.shape), mask_BT, totals.sequences)
        loss = sequence_sum(loss_BT, mask_BT, totals.sequences) + pull
        mean = mean_over(square_B1, mask_BT.any(dim=-1, keepdim=True))
        return self.finish(loss, outputs, batch, totals, {"policy/squared_log_ratio": mean})
