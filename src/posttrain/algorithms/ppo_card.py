"""The facts about PPO; in a file of their own because ppo.py would be too long to read at one sitting."""

from __future__ import annotations

from posttrain.algorithms.critic import REWARD_METRICS, VALUE_METRICS
from posttrain.algorithms.declared import Card, biased
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, ENTROPY_METRICS, KL_METRICS, RATIO_METRICS, clip_formulas

PPO_CARD = Card(
    title="PPO: Proximal Policy Optimization",
    paper="arXiv:1707.06347; GAE arXiv:1506.02438; for language models InstructGPT, arXiv:2203.02155",
    summary="A critic predicts the reward before each token, so that each token is credited with what it changed.",
    choices={
        "baseline": "critic",
        "normalisation": "whiten_tokens",
        "ratio": "token",
        "trust_region": "clip",
        "kl": "reward",
        "aggregation": "token_mean",
        "correction": "auto",
        "filter": "none",
        "shaping": "score",
    },
    use_when="The reward is a learned model or otherwise graded, answers are long, and one answer per prompt has to "
    "do: the critic needs no group.",
    avoid_when="Rewards are right or wrong and several answers per prompt are affordable: their mean is a baseline "
    "that needs no training (GRPO, RLOO).",
    differs=(
        "The loss of the critic has the factor 1/2 of public implementations, which the formula of the paper has not.",
        "Paper (Atari): gamma 0.99, entropy_coef 0.01; here gamma 1 and 0, as for language models.",
        "The critic has a learning rate, a warm-up and a bound on the norm of its gradient of its own: see the section "
        "critic of the config, and docs/ppo.md.",
        "Tokens that the policy did not produce are skipped by the recursion, as in verl and AReaL; OpenRLHF and TRL "
        "discount at them (RULE 17).",
        "After the last token the value is 0, of a truncated completion too, as in TRL, verl and OpenRLHF; AReaL "
        "bootstraps with the last value when the window is full.",
        "The score stands on the last token, as in verl and OpenRLHF; TRL 0.24 puts it one place behind, where the "
        "numbers differ for gae_lambda < 1.",
        "Whitening is over the tokens of the whole step with n - 1 (verl); TRL 0.24 whitens per process, OpenRLHF "
        "divides by n. A single token is left unwhitened.",
        "dual_clip is off; verl's loss always applies 3.",
        "kl_target is in nats per completion, as in arXiv:1909.08593; verl measures per token, so that targets cannot "
        "be carried over.",
        "The estimate is biased with gae_lambda < 1 and an imperfect critic, and by whitening, which divides by a "
        "standard deviation that contains the sample itself.",
        biased(0.758, 0.561),
    ),
    sources={
        "clip_low": "0.2: the paper",
        "clip_high": "0.2: the paper",
        "dual_clip": "off: the paper; verl uses 3",
        "value_clip": "0.2: TRL, as its clip of the ratio; verl, OpenRLHF and AReaL use 0.5; the paper has none",
        "value_coef": "1: the paper; TRL uses 0.1",
        "gamma": "1: InstructGPT, TRL, verl, OpenRLHF, AReaL",
        "gae_lambda": "0.95: the paper, InstructGPT, TRL; verl, OpenRLHF and AReaL use 1",
        "kl_coef": "0.02: InstructGPT; TRL 0.05, OpenRLHF 0.01, verl off",
        "kl_target": "off: InstructGPT; 6 in arXiv:1909.08593",
        "kl_estimator": "k1: InstructGPT, TRL, verl, OpenRLHF, AReaL",
        "whiten_advantages": "on: TRL, verl, OpenRLHF, AReaL",
        "whiten_rewards": "off: TRL; the others have no such option",
        "score_clip": "off: InstructGPT, TRL; OpenRLHF uses 10, AReaL 20",
        "missing_eos_penalty": "0: off in TRL, too, whose examples use 1",
    },
    metrics=clip_formulas()
    | DUAL_CLIP_METRICS
    | RATIO_METRICS
    | VALUE_METRICS
    | REWARD_METRICS
    | KL_METRICS
    | ENTROPY_METRICS,
)
