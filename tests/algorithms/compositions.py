"""Every setting of `policy_gradient`, the choices that read it and another value for it, to find dead settings."""

from typing import Any

NO_RATIO = {"ratio": "none", "trust_region": "none"}
CRITIC = {"baseline": "critic", "normalisation": "none", "kl": "none"}
TEACHER = {"baseline": "teacher", "normalisation": "none", "kl": "none", **NO_RATIO}
KERNEL = {"ratio": "sequence_product", "trust_region": "kernel"}
COVARIANCE = {"trust_region": "clip_cov", "cov_low": -9.0, "cov_share": 0.5}
DIVERGENCE = {"trust_region": "divergence_mask", "divergence_low": 0.005, "divergence_high": 0.005}
DISCOUNTED = {"baseline": "batch_mean", "normalisation": "none"}
LENGTH = {"shaping": "length", "correct_at": 0.5}

SETTINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "baseline": ({}, "length_weighted"),
    "normalisation": ({}, "none"),
    "ratio": ({}, "sequence"),
    "trust_region": ({}, "soft_gate"),
    "kl": ({"kl_coef": 0.1}, "reward"),
    "aggregation": ({}, "token_mean"),
    "filter": ({}, "signal"),
    "shaping": ({"length_coef": None}, "length"),
    "entropy_coef": ({}, 0.1),
    "correction": ({}, "tis"),
    "baseline_decay": ({"baseline": "moving_average", "normalisation": "none"}, 0.1),
    "constant": ({"baseline": "constant", "normalisation": "none"}, 0.5),
    "k": ({"baseline": "pass_at_k", "normalisation": "none", "correct_at": 1.9}, 2),
    "correct_at": ({"baseline": "pass_at_k", "normalisation": "none", "k": 2}, 1.9),
    "coef": (TEACHER, 0.5),
    "floor": (TEACHER, -0.01),
    "gae_lambda": (CRITIC, 0.5),
    "value_coef": (CRITIC, 0.1),
    "value_clip": (CRITIC, 1e-3),
    "gamma": (DISCOUNTED, 0.5),
    "std_epsilon": ({}, 0.1),
    "population": ({}, True),
    "top_entropy_quantile": ({}, 0.5),
    "whiten_over": ({"normalisation": "whiten_tokens"}, "sequences"),
    "center": ({"normalisation": "whiten_tokens"}, False),
    "clip_low": ({"clip_low": 0.9, "clip_high": 9.0}, 0.01),
    "clip_high": ({"clip_low": 0.9, "clip_high": 9.0}, 0.01),
    "dual_clip": ({}, 1.01),
    "max_ratio": ({"trust_region": "weight_clip"}, 1.001),
    "tau_pos": ({"trust_region": "soft_gate"}, 3.0),
    "tau_neg": ({"trust_region": "soft_gate"}, 3.0),
    "k_pos": (KERNEL, 1.0),
    "lambda_pos": (KERNEL, 1.0),
    "k_neg": (KERNEL, 1.0),
    "lambda_neg": (KERNEL, 1.0),
    "divergence": (DIVERGENCE, "kl"),
    "divergence_low": (DIVERGENCE, 9.0),
    "divergence_high": (DIVERGENCE, 9.0),
    "cov_low": (COVARIANCE, 0.01),
    "cov_high": (COVARIANCE, 0.01),
    "cov_share": (COVARIANCE, 0.1),
    "seed": (COVARIANCE, 1),
    "penalty": ({"trust_region": "kl_cov", "cov_share": 0.5}, 9.0),
    "tau": ({"trust_region": "squared_log_ratio", "ratio": "none"}, 9.0),
    "kl_coef": ({}, 0.1),
    "kl_estimator": ({"kl_coef": 0.1}, "k2"),
    "max_completion_length": ({"aggregation": "fixed_length_mean", "max_completion_length": 8}, 100),
    "count_masked_sequences": ({}, True),
    "max_negative_divergence": ({"filter": "off_policy_negatives"}, 1e-4),
    "overlong_buffer": ({"shaping": "soft_overlong", "max_completion_length": 4}, 3),
    "length_coef": (LENGTH, 0.5),
    "token_budget": ({"shaping": "budget"}, 2),
    "budget_penalty": ({"shaping": "budget", "token_budget": 2}, 0.25),
    "score_clip": ({"shaping": "score", "normalisation": "none"}, 0.3),
    "missing_eos_penalty": ({"shaping": "score", "normalisation": "none"}, 0.5),
}
"""Setting -> the settings that accompany it, and its changed value."""
