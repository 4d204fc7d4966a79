"""REINFORCE (Williams 1992), with an optional baseline.

    r_t = R on the last token, minus kl_coef * log(old / reference) on every token
    A_t = sum over s >= t of gamma^(s-t) r_s  -  b
    L   = -A_t * logprobs

Sum over the tokens of a completion, mean over completions. The baseline b is 0, the mean reward of the batch, or a
moving average of the mean rewards of *earlier* batches. With clip_low and clip_high the token ratio is clipped as in
PPO, which is needed only with several updates per batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import token_returns
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, refuse_half_a_clip, weighted
from posttrain.functional.baselines import batch_mean
from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import sequence_sum
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@dataclass(frozen=True, kw_only=True)
class MovingAverage:
    """The moving average of the mean rewards of the batches so far. If `batches` is 0, there was no batch."""

    mean: float = 0.0
    batches: int = 0


@settings
class REINFORCE(PolicyGradient):
    key = "reinforce"
    reads_token_rewards = True
    kl_in_reward = True
    metrics = clip_formulas()

    baseline: Literal["none", "batch_mean", "moving_average"] = "batch_mean"
    """Baseline, subtracted from the return: 0, the batch's mean reward, or a moving average of earlier batches."""
    baseline_decay: UnitInterval = 0.9
    """Weight of the old value when a batch updates the moving average."""
    clip_low: NonNegative | None = None
    """Lower clip bound of the token ratio, as a distance from 1. None: no ratio, which is plain REINFORCE."""
    clip_high: NonNegative | None = None
    """Upper clip bound, as a distance from 1. Set both bounds or neither."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference (estimator k1), which is subtracted from the reward of each token."""
    gamma: UnitInterval = 1.0
    """Discount factor per token."""

    def __post_init__(self) -> None:
        refuse_half_a_clip(self.clip_low, self.clip_high)

    def initial_state(self) -> MovingAverage:
        return MovingAverage()

    def next_state(self, state: MovingAverage, experience: Experience) -> MovingAverage:
        if not experience.scored_PG.any():
            return state
        mean = float(batch_mean(experience.total_rewards_PG, experience.scored_PG))
        if state.batches:
            mean = self.baseline_decay * state.mean + (1 - self.baseline_decay) * mean
        return MovingAverage(mean=mean, batches=state.batches + 1)

    def advantages(self, experience: Experience, state: MovingAverage | None = None) -> Tensor:
        returns_BT = token_returns(experience, self.kl_coef, self.gamma)
        return masked(returns_BT - self._baseline(experience, state), experience.scored_mask_BT)

    def _baseline(self, experience: Experience, state: MovingAverage | None) -> Tensor | float:
        if self.baseline == "batch_mean":
            return batch_mean(experience.total_rewards_PG, experience.scored_PG)
        if self.baseline == "moving_average" and state is not None:
            return state.mean
        return 0.0

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT, advantages_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT), advantages_of(batch)
        if self.clip_low is None or self.clip_high is None:
            loss_BT = -advantages_BT * outputs.logprobs_BT
        else:
            loss_BT = clipped_surrogate(ratio_BT, advantages_BT, self.clip_low, self.clip_high)
        loss = sequence_sum(weighted(loss_BT, batch), batch.completion_mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
