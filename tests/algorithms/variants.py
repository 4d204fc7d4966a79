"""Every algorithm, in the variants that take another path through its code: what the invariances are tried on."""

from posttrain.algorithms import (
    CISPO,
    DAPO,
    DPPO,
    GMPO,
    GRPO,
    GSPO,
    REINFORCE,
    RLOO,
    SAPO,
    SFT,
    VESPO,
    Algorithm,
    ClipCov,
    DrGRPO,
    GSPOToken,
    KLCov,
)

VARIANTS: dict[str, Algorithm] = {
    "reinforce": REINFORCE(),
    "reinforce none": REINFORCE(baseline="none", gamma=0.9),
    "reinforce clip kl": REINFORCE(clip_low=0.2, clip_high=0.2, kl_coef=0.1),
    "rloo": RLOO(),
    "rloo clip kl": RLOO(clip_low=0.2, clip_high=0.2, kl_coef=0.1),
    "grpo": GRPO(),
    "grpo k3": GRPO(clip_high=0.28, kl_coef=0.1),
    "grpo k2 dual clip": GRPO(dual_clip=1.5, kl_coef=0.1, kl_estimator="k2"),
    "grpo corrected": GRPO(kl_coef=0.1, kl_estimator="k3_corrected"),
    "grpo entropy": GRPO(entropy_coef=0.1),
    "dr_grpo": DrGRPO(max_completion_length=9),
    "dr_grpo kl": DrGRPO(max_completion_length=9, kl_coef=0.1, entropy_coef=0.1),
    "dapo": DAPO(),
    "dapo overlong": DAPO(overlong_buffer=3, max_completion_length=6, kl_coef=0.1, dual_clip=1.5, entropy_coef=0.1),
    "gspo": GSPO(),
    "gspo wide kl": GSPO(clip_low=0.2, clip_high=0.2, kl_coef=0.1, kl_estimator="k2"),
    "gspo_token": GSPOToken(),
    "gspo_token wide kl": GSPOToken(clip_low=0.2, clip_high=0.2, kl_coef=0.1),
    "gmpo": GMPO(),
    "gmpo narrow": GMPO(clip_low=0.15, clip_high=0.15, entropy_coef=0.1),
    "cispo": CISPO(),
    "cispo relative": CISPO(max_ratio=None, clip_low=0.2, clip_high=0.2),
    "sapo": SAPO(),
    "sapo sharp": SAPO(tau_pos=2.0, tau_neg=3.0),
    "vespo": VESPO(),
    "clip_cov": ClipCov(),
    "clip_cov many": ClipCov(clip_low=0.2, clip_high=0.2, cov_low=-0.5, cov_high=0.5, cov_share=0.2, seed=3),
    "kl_cov": KLCov(),
    "kl_cov many": KLCov(cov_share=0.2, penalty=0.5),
    "dppo": DPPO(),
    "dppo kl": DPPO(divergence="kl", divergence_low=0.02, divergence_high=0.05, max_ratio=1.5),
    "sft": SFT(),
}
GROUP_RELATIVE = [
    *("rloo", "grpo", "dr_grpo"),
    *("dapo", "gspo", "gspo_token", "gmpo", "cispo", "sapo", "vespo", "clip_cov", "kl_cov", "dppo"),
]
"""Variants whose advantages compare the completions of a prompt and sum to zero over them."""
DIVIDED_BY_STD = set(GROUP_RELATIVE) - {"rloo", "dr_grpo"}
"""Keys of those among them whose advantages do not grow with the scale of the rewards."""
STRAIGHT_THROUGH = {"gspo_token", "cispo", "vespo", "dppo"}
"""Keys of those whose gradient is not that of their value: it holds a factor that is a constant for the gradient."""
