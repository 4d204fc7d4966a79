"""Every algorithm, in the variants that take another path through its code: what the invariances are tried on."""

from posttrain.algorithms import GRPO, REINFORCE, RLOO, SFT, Algorithm, DrGRPO

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
    "sft": SFT(),
}
GROUP_RELATIVE = ["rloo", "grpo", "dr_grpo"]
"""Variants whose advantages compare the completions of a prompt and sum to zero over them."""
DIVIDED_BY_STD = {"grpo"}
"""Keys of those among them whose advantages do not grow with the scale of the rewards."""
