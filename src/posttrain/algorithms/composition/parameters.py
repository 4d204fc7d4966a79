"""The numbers behind the choices of `policy_gradient`: none is the default of whichever choice reads it."""

from __future__ import annotations

from typing import Literal

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.critic import VALUE_METRICS
from posttrain.algorithms.kimi_k15 import SQUARED_LOG_RATIO
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import (
    AboveOne,
    Count,
    CountOrZero,
    Finite,
    KLEstimator,
    NonNegative,
    Positive,
    Share,
    UnitInterval,
    settings,
)
from posttrain.functional.trust_regions import Divergence


@settings
class Parameters(PolicyGradient):
    """A parameter that no chosen part reads is refused when it is given."""

    open_composition = True
    metrics = {
        **clip_formulas("the elements that have a ratio: trained tokens, or completions", "u"),
        **DUAL_CLIP_METRICS,
        "policy/weight_clip_fraction": "weight_clip: share of them whose weight is held at a bound",
        "policy/gate_mean": "soft_gate: mean of the gate over them",
        "policy/kernel_mean": "kernel: mean of the weight over the trained tokens",
        "policy/selected_fraction": "clip_cov, kl_cov: share of the trained tokens that are chosen",
        "policy/weight_mean": "truncated_negatives: mean of the weight over the completions",
        "policy/dropped_fraction": "off_policy_negatives: share of the completions that leave the policy term",
        **SQUARED_LOG_RATIO,
        **VALUE_METRICS,
    }

    baseline_decay: UnitInterval | None = None
    """baseline moving_average: weight of the old value, 0.9."""
    constant: Finite | None = None
    """baseline constant: what is subtracted from every reward, 0."""
    k: Count | None = None
    """baseline pass_at_k: of how many answers one shall be correct, 4."""
    correct_at: Finite | None = None
    """baseline pass_at_k, shaping length: the reward from which on a completion counts as correct, 1."""
    coef: Positive | None = None
    """baseline teacher: factor of the advantages, 1."""
    floor: Finite | None = None
    """baseline teacher: the lowest log(teacher / policy), -10."""
    gae_lambda: UnitInterval | None = None
    """baseline critic: 1 is the return minus the value, 0 the one-step difference; 0.95."""
    value_coef: NonNegative | None = None
    """baseline critic: weight of the critic's loss, 1."""
    value_clip: Positive | None = None
    """baseline critic: a value gains nothing by moving further than this from where it was; off."""
    gamma: UnitInterval | None = None
    """Discount per token, 1: of the return that none, batch_mean, moving_average, greedy and optimal_token are
    subtracted from, of the critic, and of the KL in the reward."""
    std_epsilon: Positive | None = None
    """normalisation group_std, batch_std, mean_reward and per_reward: added to what divides, 1e-6."""
    population: bool | None = None
    """normalisation group_std, batch_std and whiten_tokens: divide the squares by n and not by n - 1; false."""
    whiten_over: Literal["tokens", "sequences"] | None = None
    """normalisation whiten_tokens: what counts once, tokens."""
    center: bool | None = None
    """normalisation whiten_tokens: subtract the mean as well; true."""
    clip_low: NonNegative | None = None
    """trust_region clip and clip_cov: 0.2 below 1. log_clip: 0.4 below 0. weight_clip: below 1, off."""
    clip_high: NonNegative | None = None
    """The same above."""
    dual_clip: AboveOne | None = None
    """trust_region clip: the loss where A < 0 is at most dual_clip * |A|; off."""
    max_ratio: AboveOne | None = None
    """trust_region weight_clip: the largest weight, 5 unless clip_low or clip_high is given. divergence_mask: 20."""
    tau_pos: Positive | None = None
    """trust_region soft_gate: how fast the gradient fades where A > 0, 1."""
    tau_neg: Positive | None = None
    """The same where A < 0, 1.05."""
    k_pos: NonNegative | None = None
    """trust_region kernel: power of the ratio where A >= 0, 2."""
    lambda_pos: NonNegative | None = None
    """trust_region kernel: decay of the ratio where A >= 0, 3."""
    k_neg: NonNegative | None = None
    """The power where A < 0, 3."""
    lambda_neg: NonNegative | None = None
    """The decay where A < 0, 2."""
    divergence: Divergence | None = None
    """trust_region divergence_mask: how the movement of a token is measured, tv."""
    divergence_low: NonNegative | None = None
    """trust_region divergence_mask: where A < 0, at most so far down, 0.15."""
    divergence_high: NonNegative | None = None
    """trust_region divergence_mask: where A > 0, at most so far up, 0.15."""
    cov_low: Finite | None = None
    """trust_region clip_cov: only tokens with a larger covariance are drawn from, 1."""
    cov_high: Finite | None = None
    """trust_region clip_cov: only tokens with a smaller covariance are drawn from, 5."""
    cov_share: UnitInterval | None = None
    """trust_region clip_cov: share of the tokens that is stopped, 2e-4. kl_cov: that is held, 2e-3."""
    seed: int | None = None
    """trust_region clip_cov: another number is another draw, 0."""
    penalty: NonNegative | None = None
    """trust_region kl_cov: weight of |logprobs - old_logprobs| of the tokens that are held, 1."""
    tau: NonNegative | None = None
    """trust_region squared_log_ratio, token_squared_log_ratio and regression: pull to the policy at the start of the
    update, 0.1."""
    top_entropy_quantile: Share | None = None
    """Only this share of the tokens of an update, those of largest entropy, has a policy term; all."""
    kl_coef: NonNegative | None = None
    """Weight of the KL to the reference, 0, which also means that no reference is loaded."""
    kl_estimator: KLEstimator | None = None
    """kl loss: k3, or any but k1. kl reward: k1, k2 or k3; k1."""
    max_completion_length: Count | None = None
    """aggregation fixed_length_mean and shaping soft_overlong; in a run it is sampling.max_completion_length unless
    set."""
    count_masked_sequences: bool | None = None
    """aggregation over completions: rows that train nothing stay in the denominator; false (RULE 8)."""
    max_negative_divergence: Positive | None = None
    """filter off_policy_negatives: a bad completion whose mean log(sampler / policy) is above this is dropped, 0.5."""
    overlong_buffer: CountOrZero | None = None
    """shaping soft_overlong: tokens over which the penalty grows from 0 to 1; off."""
    length_coef: NonNegative | None = None
    """shaping length: weight of the length reward, 1."""
    token_budget: Count | None = None
    """shaping budget: completions with more tokens are fined; off."""
    budget_penalty: NonNegative | None = None
    """shaping budget: the fine, 1."""
    score_clip: Positive | None = None
    """shaping score: rewards are held within this distance of 0; off."""
    missing_eos_penalty: NonNegative | None = None
    """shaping score: subtracted from the reward of a completion that was cut before its EOS, 0."""

    @property
    def correct_from(self) -> float | None:
        return self.correct_at
