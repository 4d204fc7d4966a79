"""Every algorithm, in variants that take different paths through its code. The invariances are tested on all of
them."""

from posttrain.algorithms import (
    CISPO,
    DAPO,
    DPPO,
    DRO,
    GDPO,
    GMPO,
    GPG,
    GRPO,
    GSPO,
    LUSPO,
    OPO,
    PPO,
    REINFORCE,
    RLOO,
    SAPO,
    SFT,
    TOPR,
    VESPO,
    Algorithm,
    ClipCov,
    ComposedPolicyGradient,
    DeepSeekV32,
    Distillation,
    DrGRPO,
    GRPOPassK,
    GSPOToken,
    KimiK2,
    KimiK15,
    KLCov,
    LitePPO,
    MaxRL,
    PassAtK,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
)
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.rules import Rule

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
    "remax": ReMax(),
    "remax clip kl": ReMax(clip_low=0.2, clip_high=0.2, kl_coef=0.1, gamma=0.9),
    "reinforce_plus_plus": ReinforcePlusPlus(),
    "reinforce_plus_plus kl sequences": ReinforcePlusPlus(kl_coef=0.1, gamma=0.9, whiten_over="sequences"),
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline(kl_coef=0.1),
    "reinforce_plus_plus_baseline uncentred": ReinforcePlusPlusBaseline(center=False),
    "ppo": PPO(),
    "ppo plain": PPO(whiten_advantages=False, kl_coef=0.0, value_clip=None, gae_lambda=1.0),
    "ppo everything": PPO(
        dual_clip=1.5,
        value_coef=0.3,
        gamma=0.9,
        kl_coef=0.1,
        kl_target=2.0,
        kl_estimator="k3",
        whiten_rewards=True,
        score_clip=0.7,
        missing_eos_penalty=0.2,
        entropy_coef=0.1,
    ),
    "gdpo": GDPO(),
    "gdpo kl dual clip": GDPO(kl_coef=0.1, dual_clip=1.5),
    "topr": TOPR(baseline=0.5),
    "kimi_k15": KimiK15(),
    "kimi_k15 length": KimiK15(tau=1.0, length_coef=0.5, correct_at=0.5),
    "kimi_k2": KimiK2(),
    "kimi_k2 budget": KimiK2(tau=1.0, token_budget=4, entropy_coef=0.1),
    "pass_at_k": PassAtK(k=2, correct_at=0.5),
    "deepseek_v32": DeepSeekV32(),
    "deepseek_v32 corrected": DeepSeekV32(max_negative_divergence=0.05, kl_coef=0.1),
    "distillation": Distillation(),
    "distillation clip floor": Distillation(coef=0.5, floor=-0.2, clip_low=0.2, clip_high=0.2),
    "lite_ppo": LitePPO(dual_clip=1.5, kl_coef=0.1),
    "luspo": LUSPO(),
    "luspo wide": LUSPO(clip_low=0.2, clip_high=0.2),
    "opo": OPO(),
    "gpg": GPG(),
    "maxrl": MaxRL(),
    "dro": DRO(tau=0.5),
    "grpo_passk": GRPOPassK(),
    "grpo top entropy": GRPO(top_entropy_quantile=0.4, kl_coef=0.1, correction="icepop"),
    "dapo top entropy": DAPO(top_entropy_quantile=0.3),
    "composed top entropy": ComposedPolicyGradient(top_entropy_quantile=0.5, ratio="sequence"),
    "grpo tis": GRPO(correction="tis", kl_coef=0.1),
    "grpo seq_mis": GRPO(correction="seq_mis"),
    "grpo bypass": GRPO(correction="bypass"),
    "grpo kpop": GRPO(correction="kpop"),
    "grpo m2po": GRPO(correction="m2po"),
    "grpo both at once": GRPO(
        correction=Correction(
            high=1.2, reject=(Rule(score="max_k3", high=0.1), Rule(score="token", low=0.6, high=1.6)), normalize=True
        )
    ),
    "gspo rejected": GSPO(
        clip_low=0.2,
        clip_high=0.2,
        correction=Correction(
            level="sequence",
            action="full",
            reject=(Rule(score="sum_k2", high=0.4), Rule(score="total_variation", high=0.2)),
        ),
    ),
    "dr_grpo geometric": DrGRPO(
        max_completion_length=9, correction=Correction(level="geometric", action="reject", low=0.9, high=1.1)
    ),
    "reinforce normalised": REINFORCE(correction=Correction(low=0.8, high=1.3, normalize=True)),
    "rloo weighed by the sampler": RLOO(correction=Correction(anchor="sampler", level="sequence", high=2)),
    "dapo denominator": DAPO(
        correction=Correction(action="mask", low=0.7, high=1.4, rejected_in_denominator=False), entropy_coef=0.1
    ),
    "gspo masked": GSPO(clip_low=0.2, clip_high=0.2, correction="icepop"),
    "vespo masked": VESPO(correction=Correction(action="mask", low=0.7, high=1.4)),
    "composed": ComposedPolicyGradient(),
    "composed prompt_mean": ComposedPolicyGradient(aggregation="prompt_mean", kl_coef=0.1),
    "composed optimal token": ComposedPolicyGradient(
        baseline="optimal_token", normalisation="none", kl="none", aggregation="token_mean", gamma=0.9
    ),
    "composed counting": ComposedPolicyGradient(
        baseline="leave_one_out",
        normalisation="batch_std",
        aggregation="fixed_length_mean",
        max_completion_length=9,
        count_masked_sequences=True,
        ratio="sequence_token",
    ),
    "composed kl in reward": ComposedPolicyGradient(
        kl="reward",
        kl_coef=0.1,
        kl_estimator="k2",
        gamma=0.9,
        population=True,
        aggregation="token_mean",
    ),
    "composed whitened critic": ComposedPolicyGradient(
        baseline="critic", normalisation="whiten_tokens", population=True, ratio="none", trust_region="none", kl="none"
    ),
    "composed gated sequence": ComposedPolicyGradient(
        baseline="length_weighted",
        normalisation="none",
        ratio="sequence_product",
        trust_region="soft_gate",
        filter="off_policy_negatives",
        max_negative_divergence=0.01,
    ),
    "composed ratio alone": ComposedPolicyGradient(
        baseline="moving_average",
        normalisation="whiten_tokens",
        center=False,
        ratio="sequence",
        trust_region="none",
        kl="reward_sequence",
        kl_coef=0.1,
        shaping="soft_overlong",
        overlong_buffer=3,
        max_completion_length=6,
    ),
    "sft": SFT(),
}
GROUP_RELATIVE = [
    *("rloo", "grpo", "dr_grpo"),
    *("dapo", "gspo", "gspo_token", "gmpo", "cispo", "sapo", "vespo", "clip_cov", "kl_cov", "dppo"),
    *("reinforce_plus_plus_baseline uncentred", "kimi_k15", "kimi_k2", "deepseek_v32"),
    *("luspo", "composed", "dro"),
]
"""Variants whose advantages compare the completions of a prompt and sum to zero over them."""
NOT_DIVIDED = {"rloo", "dr_grpo", "dro", "kimi_k15", "kimi_k2", "deepseek_v32"}
DIVIDED_BY_STD = {VARIANTS[name].key for name in GROUP_RELATIVE} - NOT_DIVIDED
"""Keys of those variants whose advantages do not grow with the scale of the rewards."""
COUNTING_MASKED = {"composed counting"}
"""Variants that keep rows without trained tokens in the denominator, on request."""
WEIGHED_BY_THE_POLICY = {"rloo weighed by the sampler", "gspo masked", "gspo rejected", "composed top entropy"}
"""Variants with a weight that is constant for the gradient, although the value moves with the policy."""
STRAIGHT_THROUGH = {"gspo_token", "cispo", "vespo", "dppo", "topr"}
"""Keys of algorithms whose gradient differs from their value's, because a factor is constant for the gradient."""
