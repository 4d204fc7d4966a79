"""The parameters of the choices of `policy_gradient`. None stands for the default of the option that reads it."""

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
    """All parameters of `policy_gradient`. Setting a parameter that no chosen option reads is an error."""

    open_composition = True
    metrics = {
        **clip_formulas("the elements that have a ratio (trained tokens, or completions)", "u"),
        **DUAL_CLIP_METRICS,
        "policy/weight_clip_fraction": "weight_clip: share of the elements that have a ratio whose weight is clipped",
        "policy/gate_mean": "soft_gate: mean of the gate over the elements that have a ratio",
        "policy/kernel_mean": "kernel: mean of the weight over the trained tokens",
        "policy/selected_fraction": "clip_cov, kl_cov: share of the trained tokens that are chosen",
        "policy/weight_mean": "truncated_negatives: mean of the weight over the completions",
        "policy/dropped_fraction": "off_policy_negatives: share of completions that are dropped from the policy term",
        **SQUARED_LOG_RATIO,
        **VALUE_METRICS,
    }

    baseline_decay: UnitInterval | None = None
    """baseline moving_average: weight of the old average. Default 0.9."""
    constant: Finite | None = None
    """baseline constant: number that is subtracted from every reward. Default 0."""
    k: Count | None = None
    """baseline pass_at_k: number of answers of which at least one should be correct. Default 4."""
    correct_at: Finite | None = None
    """baseline pass_at_k, shaping length: reward from which a completion counts as correct. Default 1."""
    coef: Positive | None = None
    """baseline teacher: factor that multiplies the advantages. Default 1."""
    floor: Finite | None = None
    """baseline teacher: lower bound of log(teacher / policy). Default -10."""
    gae_lambda: UnitInterval | None = None
    """baseline critic: 1 is the return minus the value, 0 the one-step temporal difference. Default 0.95."""
    value_coef: NonNegative | None = None
    """baseline critic: weight of the critic's loss. Default 1."""
    value_clip: Positive | None = None
    """baseline critic: distance from its old value beyond which a value gives no further gain. Default: no clip."""
    gamma: UnitInterval | None = None
    """Discount factor per token, for the returns of the baselines none, batch_mean, moving_average, greedy,
    optimal_token and critic, and for the KL in the reward. Default 1."""
    std_epsilon: Positive | None = None
    """normalisation group_std, batch_std, mean_reward and per_reward: number added to the divisor. Default 1e-6."""
    population: bool | None = None
    """normalisation group_std, batch_std and whiten_tokens: divide the squares by n, not by n - 1. Default false."""
    whiten_over: Literal["tokens", "sequences"] | None = None
    """normalisation whiten_tokens: unit that counts once in mean and variance. Default tokens."""
    center: bool | None = None
    """normalisation whiten_tokens: subtract the mean as well. Default true."""
    clip_low: NonNegative | None = None
    """Lower clip bound. trust_region clip and clip_cov: distance from 1, default 0.2. log_clip: distance from 0 in log
    space, default 0.4. weight_clip: distance from 1, default no bound."""
    clip_high: NonNegative | None = None
    """Upper clip bound, with the same units and defaults as clip_low."""
    dual_clip: AboveOne | None = None
    """trust_region clip: upper bound of the loss if A < 0, as a multiple of |A|. Default: no bound."""
    max_ratio: AboveOne | None = None
    """Largest weight. trust_region weight_clip: default 5 unless clip_low or clip_high is set. divergence_mask: 20."""
    tau_pos: Positive | None = None
    """trust_region soft_gate: temperature if A > 0. Default 1."""
    tau_neg: Positive | None = None
    """trust_region soft_gate: temperature if A <= 0. Default 1.05."""
    k_pos: NonNegative | None = None
    """trust_region kernel: exponent of the ratio if A >= 0. Default 2."""
    lambda_pos: NonNegative | None = None
    """trust_region kernel: decay rate in the ratio if A >= 0. Default 3."""
    k_neg: NonNegative | None = None
    """trust_region kernel: exponent of the ratio if A < 0. Default 3."""
    lambda_neg: NonNegative | None = None
    """trust_region kernel: decay rate in the ratio if A < 0. Default 2."""
    divergence: Divergence | None = None
    """trust_region divergence_mask: measure of how far a token has moved. Default tv."""
    divergence_low: NonNegative | None = None
    """trust_region divergence_mask: largest divergence of a token that became less likely, if A <= 0. Default 0.15."""
    divergence_high: NonNegative | None = None
    """trust_region divergence_mask: largest divergence of a token that became more likely, if A > 0. Default 0.15."""
    cov_low: Finite | None = None
    """trust_region clip_cov: the draw considers only tokens with a larger covariance. Default 1."""
    cov_high: Finite | None = None
    """trust_region clip_cov: the draw considers only tokens with a smaller covariance. Default 5."""
    cov_share: UnitInterval | None = None
    """Share of tokens. trust_region clip_cov: tokens without gradient, default 2e-4. kl_cov: with penalty, 2e-3."""
    seed: int | None = None
    """trust_region clip_cov: seed of the draw. Default 0."""
    penalty: NonNegative | None = None
    """trust_region kl_cov: weight of |logprobs - old_logprobs| for the chosen tokens. Default 1."""
    tau: NonNegative | None = None
    """trust_region squared_log_ratio, token_squared_log_ratio and regression: strength of the pull towards the policy
    at the start of the update. Default 0.1."""
    top_entropy_quantile: Share | None = None
    """Share of the tokens of an update, those with the largest entropy, that have a policy term. Default: all."""
    kl_coef: NonNegative | None = None
    """Weight of the KL to the reference. Default 0, for which no reference is loaded."""
    kl_estimator: KLEstimator | None = None
    """KL estimator. kl loss: any but k1, default k3. kl reward: k1, k2 or k3, default k1."""
    max_completion_length: Count | None = None
    """aggregation fixed_length_mean and shaping soft_overlong: length in tokens. If unset, a run uses
    sampling.max_completion_length."""
    count_masked_sequences: bool | None = None
    """aggregation over completions: rows that train nothing stay in the denominator. Default false (RULE 8)."""
    max_negative_divergence: Positive | None = None
    """filter off_policy_negatives: largest mean log(sampler / policy) of a completion with A < 0. Default 0.5."""
    overlong_buffer: CountOrZero | None = None
    """shaping soft_overlong: number of tokens over which the penalty grows from 0 to 1. Default: no penalty."""
    length_coef: NonNegative | None = None
    """shaping length: weight of the length reward. Default 1."""
    token_budget: Count | None = None
    """shaping budget: largest number of tokens without a penalty. Default: no penalty."""
    budget_penalty: NonNegative | None = None
    """shaping budget: penalty for a completion beyond the budget. Default 1."""
    score_clip: Positive | None = None
    """shaping score: bound of the absolute reward. Default: no bound."""
    missing_eos_penalty: NonNegative | None = None
    """shaping score: penalty that is subtracted from the reward of a completion cut before its EOS. Default 0."""
