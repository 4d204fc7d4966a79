"""The trust regions of `policy_gradient`: each has a term of the loss, its ratios and its parameters (RULE 16)."""

from __future__ import annotations

from posttrain.algorithms.composition.ratios import DIFFERENTIATED, WEIGHTS, TrustRegion
from posttrain.algorithms.composition.surrogates import (
    clip,
    clip_cov,
    divergence_mask,
    kernel,
    kl_cov,
    log_clip,
    negatives,
    nothing,
    regression,
    select_clip_cov,
    select_kl_cov,
    soft_gate,
    squared_log_ratio,
    token_squared_log_ratio,
    weight_clip,
)

CLIP = {"clip_low": 0.2, "clip_high": 0.2}
KERNEL = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
DIVERGENCE = {"divergence": "tv", "divergence_low": 0.15, "divergence_high": 0.15, "max_ratio": 20.0}
COVARIANCE = {"cov_low": 1.0, "cov_high": 5.0, "cov_share": 2e-4, "seed": 0, "dual_clip": None}
TRUST_REGIONS = {
    "none": TrustRegion(term=nothing, ratios=("none", *DIFFERENTIATED)),
    "clip": TrustRegion(term=clip, ratios=DIFFERENTIATED, reads=CLIP | {"dual_clip": None}),
    "weight_clip": TrustRegion(
        term=weight_clip,
        ratios=WEIGHTS,
        reads={"max_ratio": 5.0, "clip_low": None, "clip_high": None},
        auto_correction="bypass",
        advantage_of="token",
    ),
    "soft_gate": TrustRegion(term=soft_gate, ratios=DIFFERENTIATED, reads={"tau_pos": 1.0, "tau_neg": 1.05}),
    "kernel": TrustRegion(term=kernel, ratios=WEIGHTS, reads=KERNEL, auto_correction="bypass", advantage_of="token"),
    "divergence_mask": TrustRegion(term=divergence_mask, ratios=("token",), reads=DIVERGENCE, auto_correction="bypass"),
    "clip_cov": TrustRegion(
        term=clip_cov,
        select=select_clip_cov,
        ratios=("token",),
        reads=CLIP | COVARIANCE,
        needs=frozenset({"current"}),
    ),
    "kl_cov": TrustRegion(
        term=kl_cov,
        select=select_kl_cov,
        ratios=("token",),
        reads={"cov_share": 2e-3, "penalty": 1.0},
        needs=frozenset({"current"}),
    ),
    "log_clip": TrustRegion(term=log_clip, ratios=("sequence",), reads={"clip_low": 0.4, "clip_high": 0.4}),
    "truncated_negatives": TrustRegion(term=negatives, ratios=("sequence_product",), auto_correction="bypass"),
    "squared_log_ratio": TrustRegion(
        term=squared_log_ratio,
        ratios=("none",),
        reads={"tau": 0.1},
        needs=frozenset({"old"}),
        auto_correction="bypass",
    ),
    "token_squared_log_ratio": TrustRegion(
        term=token_squared_log_ratio,
        ratios=("none",),
        reads={"tau": 0.1},
        needs=frozenset({"old"}),
        auto_correction="bypass",
    ),
    "regression": TrustRegion(
        term=regression,
        ratios=("none",),
        reads={"tau": 0.1},
        needs=frozenset({"old"}),
        auto_correction="bypass",
        advantage_of="completion",
    ),
}
