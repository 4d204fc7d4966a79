"""PPO: Proximal Policy Optimization with a critic (arXiv:1707.06347), for language models (arXiv:2203.02155).

    s     = clip(R - missing_eos_penalty * [cut before its EOS], -score_clip, score_clip)
    r_t   = s on the last token - kl_coef * k(old, reference)        on every token
    d_t   = r_t + gamma V_t+1 - V_t                                  V after the last token is 0
    A_t   = d_t + gamma gae_lambda A_t+1                             R_t = A_t + V_t, then A is whitened
    rho   = exp(logprobs - old_logprobs)                             per token
    L     = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
            + value_coef / 2 * max((V_new - R)^2, (clip(V_new, V +- value_clip) - R)^2)

Means over all tokens of the step. V_t is the critic's value of the state before token t; V, A and R stay the same for
all updates of a batch. With kl_target, each batch of n completions multiplies the weight of the KL by
1 + clip(KL / kl_target - 1, -0.2, 0.2) n / 10000. This KL is summed over tokens, then averaged over completions.
If tokens have rewards of their own, R includes them; the last token gets s minus their sum.
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.critic import (
    REWARD_METRICS,
    VALUE_METRICS,
    KLController,
    kl_before_update,
    old_values,
    reward_metrics,
    shaped_scores,
    token_rewards,
    value_term,
)
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, KLInReward, NonNegative, Positive, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, weighted
from posttrain.errors import ConfigError
from posttrain.functional.baselines import whiten
from posttrain.functional.gae import gae
from posttrain.functional.kl import adaptive_kl_coef
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class PPO(PolicyGradient):
    key = "ppo"
    reads_token_rewards = True
    always_needs = frozenset({"values"})
    kl_in_reward = True
    metrics = clip_formulas() | DUAL_CLIP_METRICS | VALUE_METRICS | REWARD_METRICS

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Upper bound of a token's loss if its advantage is negative, as a multiple of |A|. None: no bound."""
    value_clip: Positive | None = 0.2
    """Distance from its value before the update beyond which a value gives no further gain. None: no clip."""
    value_coef: NonNegative = 1.0
    """Weight of the critic's loss. It matters for a trunk that the critic shares with the policy. With AdamW it has
    almost no effect on a separate critic or adapter."""
    gamma: UnitInterval = 1.0
    """Discount factor per token."""
    gae_lambda: UnitInterval = 0.95
    """Lambda of generalised advantage estimation. 1: the return minus the value, unbiased; 0: one-step temporal
    differences, with the least variance."""
    kl_coef: NonNegative = 0.02
    """Weight of the KL to the reference, which is subtracted from the reward of each token. With 0 no reference model
    is loaded."""
    kl_target: Positive | None = None
    """Target of the KL, in nats per completion (summed over its tokens). The weight starts at kl_coef and is adapted
    until the KL reaches the target; algorithm/kl_coef logs the current weight. None: the weight is fixed."""
    kl_estimator: KLInReward = "k1"
    """Estimator of the KL in the reward. k1 is unbiased; k2 and k3 are never negative."""
    whiten_advantages: bool = True
    """If true, advantages get mean 0 and standard deviation 1 over the tokens of the step. A single token is kept."""
    whiten_rewards: bool = False
    """If true, token rewards are scaled around their mean to standard deviation 1. The mean is kept."""
    score_clip: Positive | None = None
    """Bound of the absolute reward, for a reward model without bounds. None: no bound."""
    missing_eos_penalty: NonNegative = 0.0
    """Penalty that is subtracted from the reward of a completion that was cut before its EOS."""

    def __post_init__(self) -> None:
        if self.kl_target is not None and not self.kl_coef:
            raise ConfigError(
                given=f"ppo.kl_target = {self.kl_target} with kl_coef = 0, which no factor can adapt",
                allowed="kl_coef > 0 as the initial weight",
                fix="Set kl_coef = 0.02, or leave kl_target out.",
            )

    def initial_state(self) -> KLController | None:
        return None if self.kl_target is None else KLController(kl_coef=self.kl_coef)

    def next_state(self, state: KLController | None, experience: Experience) -> KLController | None:
        if state is None or self.kl_target is None:
            return state
        rows = Batch.from_experience(experience)
        sequences = int(rows.completion_mask_BT.any(dim=-1).sum())
        if not sequences:
            return state
        kl = float(kl_before_update(rows, self.kl_estimator).sum()) / sequences
        return KLController(kl_coef=adaptive_kl_coef(state.kl_coef, kl, self.kl_target, sequences))

    def advantages(self, experience: Experience, state: KLController | None = None) -> Tensor:
        advantages_BT = self.to_batch(experience, state).advantages_BT
        assert advantages_BT is not None
        return advantages_BT

    def to_batch(self, experience: Experience, state: KLController | None = None) -> Batch:
        experience.require_rewards()
        rows = Batch.from_experience(experience)
        advantages_BT, returns_BT = self._estimate(rows, self.kl_coef if state is None else state.kl_coef)
        if self.whiten_advantages and rows.completion_mask_BT.sum() > 1:  # a single token has no standard deviation
            advantages_BT = whiten(advantages_BT, rows.completion_mask_BT)
        return replace(rows, advantages_BT=advantages_BT, returns_BT=returns_BT)

    def _estimate(self, rows: Batch, kl_coef: float) -> tuple[Tensor, Tensor]:
        """`[B, T]` advantages before whitening, and returns."""
        mask_BT = rows.completion_mask_BT
        rewards_BT = token_rewards(rows, self._scores(rows), kl_coef, self.kl_estimator)
        if self.whiten_rewards:
            rewards_BT = whiten(rewards_BT, mask_BT, mean="restore")
        return gae(rewards_BT, old_values(rows), mask_BT, self.gamma, self.gae_lambda)

    def _scores(self, rows: Batch) -> Tensor:
        return shaped_scores(rows, self.score_clip, self.missing_eos_penalty)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Return the loss and its metrics. A batch without returns gets them here, from these rows alone and with the
        initial kl_coef. If neither batch nor outputs have values, there is no critic and only the policy's loss."""
        outputs, weighed = self.start(outputs, batch)
        mask_BT = batch.completion_mask_BT
        ratio_BT = token_ratio(outputs.logprobs_BT, weighed.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(weighed), self.clip_low, self.clip_high, self.dual_clip)
        metrics: Metrics = {}
        loss = token_mean(weighted(loss_BT, weighed), mask_BT, totals.tokens)
        if outputs.values_BT is not None or batch.values_BT is not None:
            if batch.returns_BT is None and self.whiten_rewards:
                require_whole_update(batch, totals, "the returns of algorithm.to_batch")
            returns_BT = self._estimate(batch, self.kl_coef)[1] if batch.returns_BT is None else batch.returns_BT
            value_BT, value_metrics = value_term(outputs, batch, returns_BT.detach(), self.value_clip)
            loss = loss + self.value_coef * token_mean(value_BT, mask_BT, totals.tokens)
            metrics |= value_metrics
            if batch.rewards_B is not None:
                metrics |= reward_metrics(batch, self._scores(batch), self.kl_estimator)
        return self.finish(loss, outputs, weighed, totals, metrics, clipped=ratio_BT)
