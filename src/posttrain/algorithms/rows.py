"""Algorithms that only recombine choices of `policy_gradient`, each with the settings that are its own."""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.composition.row import Row
from posttrain.algorithms.declared import biased, row
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, KLInLoss, NonNegative, settings


@settings
class LitePPO(Row):
    """LitePPO: two techniques that are enough (arXiv:2508.08221).

        A_i = (R_i - mean of the group) / (std of the batch + 1e-6)
        rho = exp(logprobs - old_logprobs)                            per token
        L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

    Mean over all tokens of the step.
    """

    key: ClassVar[str] = "lite_ppo"
    min_group_size: ClassVar[int] = 2

    clip_low: NonNegative = 0.2
    """Lowering a token's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 0.2
    """Raising a token's ratio above 1 + clip_high gains nothing more."""
    dual_clip: AboveOne | None = None
    """The loss of a token with a negative advantage is at most dual_clip * |A|; None is off."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. 0 also means: no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """Read only when kl_coef > 0; k3_corrected has the unbiased gradient of KL(policy || reference)."""

    card: ClassVar[Card] = Card(
        title="LitePPO",
        paper="Tricks or Traps?, arXiv:2508.08221",
        summary="GRPO divided by the standard deviation of the batch, and averaged over tokens.",
        choices=row("group_mean batch_std token clip loss token_mean auto none none"),
        use_when="Many groups are almost all right or all wrong: a group's own small deviation would blow them up.",
        avoid_when="Rewards of different prompts are on different scales.",
        differs=(
            "Dr. GRPO's advantage but for one number per batch; the deviation is that of the raw rewards, as in TRL, "
            "which adds 1e-4.",
            biased(0.893, 0.732),
        ),
        sources={
            "clip_low": "0.2: TRL, verl, OpenRLHF",
            "clip_high": "0.2: as clip_low",
            "dual_clip": "off: the paper",
            "kl_coef": "0: the paper",
            "kl_estimator": "k3: as GRPO",
        },
        metrics=clip_formulas() | DUAL_CLIP_METRICS,
    )


@settings
class LUSPO(Row):
    """LUSPO: GSPO without its length bias (arXiv:2602.05261).

        A_i = (R_i - mean) / (std + 1e-6)                             over the G completions of one prompt
        s_i = exp(mean over its tokens of (logprobs - old_logprobs))  ratio of the whole completion
        L   = -|i| min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

    Mean over completions; |i| is the number of trained tokens.
    """

    key: ClassVar[str] = "luspo"
    min_group_size: ClassVar[int] = 2

    clip_low: NonNegative = 2e-3
    """Lowering a completion's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 2.5e-3
    """Raising a completion's ratio above 1 + clip_high gains nothing more."""

    card: ClassVar[Card] = Card(
        title="LUSPO: Length-Unbiased Sequence Policy Optimization",
        paper="LUSPO, arXiv:2602.05261",
        summary="GSPO with the loss of each answer times its length, so that every token counts the same.",
        choices=row("group_mean group_std sequence clip none sequence_sum auto none none"),
        use_when="GSPO's answers grow shorter, because the mean per answer makes long ones cheap.",
        avoid_when="Learning rates are carried over from GSPO: the loss is larger by about the mean length.",
        differs=(
            "The group's own standard deviation bends it as it bends GRPO; the length no longer does.",
            biased(0.894, 0.821),
        ),
        sources={"clip_low": "2e-3: the paper", "clip_high": "2.5e-3: the paper"},
        metrics=clip_formulas("completions", "s"),
    )


@settings
class OPO(Row):
    """OPO: On-Policy RL with an optimal baseline (arXiv:2505.23585).

        A_i = R_i - sum_j |j| R_j / sum_j |j|                         over the G completions of one prompt
        L   = -rho A_i,   rho = exp(logprobs - old_logprobs)          1 in value: exactly on-policy

    Mean over all tokens of the step; |j| is the number of trained tokens. No KL, no clip.
    """

    key: ClassVar[str] = "opo"
    min_group_size: ClassVar[int] = 2

    card: ClassVar[Card] = Card(
        title="OPO: On-Policy RL with an Optimal reward baseline",
        paper="OPO, arXiv:2505.23585",
        summary="The baseline of least variance, if longer answers have larger gradients, and nothing else.",
        choices=row("length_weighted none token none none token_mean auto none none"),
        use_when="Each batch is used for one update, and answers to one prompt differ in length.",
        avoid_when="Several updates are made per batch: nothing holds the ratio.",
        differs=("The baseline contains the answer itself, with the weight of its length.", biased(0.979, 0.951)),
    )


@settings
class GPG(Row):
    """GPG: Group Policy Gradient (arXiv:2504.02546).

        A_i = (R_i - mean of the group) * N / N_nonzero               N completions of the batch, N_nonzero with R != 0
        L   = -A_i * logprobs

    Mean over all tokens of the step. No ratio, no clip, no KL.
    """

    key: ClassVar[str] = "gpg"
    min_group_size: ClassVar[int] = 2

    card: ClassVar[Card] = Card(
        title="GPG: Group Policy Gradient",
        paper="GPG, arXiv:2504.02546",
        summary="REINFORCE with a group's mean, scaled up by what share of the batch got no reward.",
        choices=row("group_mean nonzero_share none none none token_mean auto none none"),
        use_when="Rewards are 0 or 1, and the step shall not shrink while few answers are right.",
        avoid_when="A reward of 0 is an ordinary value: the share of zeros then means nothing.",
        differs=("Counts rewards that are not 0, as verl does; verl's extra constant f is 1.", biased(0.997, 0.993)),
    )


@settings
class MaxRL(Row):
    """MaxRL: maximum likelihood reinforcement learning (arXiv:2602.02710).

        A_i = (R_i - mean(R)) / (mean(R) + 1e-6)                      over the G completions of a prompt; 0 if all fail
        L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A),  rho = exp(logprobs - old_logprobs)

    Mean over all tokens of the step. With rewards of 0 and 1 the mean estimates the probability p to solve the prompt,
    and the gradient that of log p where that of REINFORCE is p's: what a prompt weighs is 1 / p.
    """

    key: ClassVar[str] = "maxrl"
    min_group_size: ClassVar[int] = 2

    clip_low: NonNegative = 0.2
    """Lowering a token's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 0.2
    """Raising a token's ratio above 1 + clip_high gains nothing more."""

    card: ClassVar[Card] = Card(
        title="MaxRL: Maximum Likelihood Reinforcement Learning",
        paper="MaxRL, arXiv:2602.02710",
        summary="A prompt that is rarely solved weighs more, by one over its share of solved answers.",
        choices=row("group_mean mean_reward token clip none token_mean auto none none"),
        use_when="Rewards are 0 or 1, many prompts are hard, and pass@k counts as much as pass@1.",
        avoid_when="Rewards can be negative, which is refused, or a success may be luck: rare ones weigh most.",
        differs=(
            "The paper's estimator averages the scores of the solved answers of a prompt and subtracts the mean score: "
            "the same number as this advantage, but for 1e-6, which the authors' code adds as well.",
            biased(0.942, 0.997),
        ),
        sources={"clip_low": "0.2: the authors' code", "clip_high": "0.2: the authors' code"},
        metrics=clip_formulas(),
    )


@settings
class DRO(Row):
    """DRO, token by token: a squared log-ratio in place of a clip (arXiv:2405.19107, as verl has it).

        A_i = R_i - mean of the group
        d   = logprobs - old_logprobs                                 per token
        L   = -A_i * logprobs + tau / 2 * d^2

    Mean over all tokens of the step.
    """

    key: ClassVar[str] = "dro"
    min_group_size: ClassVar[int] = 2

    tau: NonNegative = 0.1
    """Strength of the pull of each token to the policy at the start of the update."""

    card: ClassVar[Card] = Card(
        title="DRO: Direct Reward Optimisation",
        paper="DRO, arXiv:2405.19107",
        summary="Kimi k1.5's loss with the square on each token in place of their sum.",
        choices=row("group_mean none none token_squared_log_ratio none token_mean auto none none"),
        use_when="Several updates are made per batch, and answers are too long for a square of the whole completion.",
        avoid_when="Each batch is used for one update: the square is then 0, and this is the plain policy gradient.",
        differs=(
            "The paper learns a value function from offline data of one answer per prompt and squares the log-ratio of "
            "the whole answer; the form here is that of verl's loss dro, with any advantage and one square per token.",
            "The mean of the group is the advantage here; in verl it is whatever its estimator gives.",
            biased(0.997, 0.993),
        ),
        sources={"tau": "0.1: as kimi_k15; verl's dro_beta has no default"},
        metrics={"policy/squared_log_ratio": "mean over the trained tokens of d^2"},
    )


@settings
class GRPOPassK(Row):
    """verl's pass@k: only the best answer of a group is raised, by its lead over the second (arXiv:2503.19595).

        A_i = (R_max - R_second) / (std(R) + 1e-6)                    for the best of a group; 0 for others and at a tie
        L   = -min(rho A, (1 + clip_high) A),                         rho = exp(logprobs - old_logprobs)

    Mean over all tokens of the step. No advantage is negative, so nothing is clipped from below.
    """

    key: ClassVar[str] = "grpo_passk"
    min_group_size: ClassVar[int] = 2

    clip_high: NonNegative = 0.2
    """Raising a token's ratio above 1 + clip_high gains nothing more."""

    card: ClassVar[Card] = Card(
        title="GRPO for pass@k",
        paper="arXiv:2503.19595; verl, adv_estimator = grpo_passk",
        summary="Only the best answer of a group is raised, by how much it leads the second.",
        choices=row("runner_up group_std token clip none token_mean auto none none"),
        use_when="One good answer among several is what counts, and rewards are graded.",
        avoid_when="Rewards are 0 or 1: two right answers are a tie and teach nothing (pass_at_k is exact).",
        differs=(
            "The paper does not divide by a deviation; verl does unless norm_adv_by_std_in_grpo is off.",
            "At a tie verl raises the first of the best by 0, which is the same.",
            biased(0.868, 0.578),
        ),
        sources={"clip_high": "0.2: verl"},
        metrics=clip_formulas(),
    )
