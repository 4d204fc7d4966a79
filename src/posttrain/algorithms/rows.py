"""Algorithms that only combine choices of `policy_gradient`, each with its own settings."""

from __future__ import annotations

from posttrain.algorithms.composition.row import Row
from posttrain.algorithms.declared import row
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

    key = "lite_ppo"
    min_group_size = 2
    choices = row("group_mean batch_std token clip loss token_mean auto none none")
    metrics = clip_formulas() | DUAL_CLIP_METRICS

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Upper bound of a token's loss if its advantage is negative, as a multiple of |A|. None: no bound."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. With 0 no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """KL estimator in the loss, read only if kl_coef > 0. k3_corrected has the unbiased gradient of
    KL(policy || reference)."""


@settings
class LUSPO(Row):
    """LUSPO: GSPO without its length bias (arXiv:2602.05261).

        A_i = (R_i - mean) / (std + 1e-6)                             over the G completions of one prompt
        s_i = exp(mean over its tokens of (logprobs - old_logprobs))  ratio of the whole completion
        L   = -|i| min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

    Mean over completions; |i| is the number of trained tokens.
    """

    key = "luspo"
    min_group_size = 2
    choices = row("group_mean group_std sequence clip none sequence_sum auto none none")
    metrics = clip_formulas("completions", "s")

    clip_low: NonNegative = 2e-3
    """Lower clip bound, as a distance from 1: a completion with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 2.5e-3
    """Upper clip bound, as a distance from 1: a completion with A > 0 gains nothing from a ratio over 1 + clip_high."""


@settings
class OPO(Row):
    """OPO: On-Policy RL with an optimal baseline (arXiv:2505.23585).

        A_i = R_i - sum_j |j| R_j / sum_j |j|                         over the G completions of one prompt
        L   = -rho A_i,   rho = exp(logprobs - old_logprobs)          1 in value: exactly on-policy

    Mean over all tokens of the step; |j| is the number of trained tokens. No KL, no clip.
    """

    key = "opo"
    min_group_size = 2
    choices = row("length_weighted none token none none token_mean auto none none")


@settings
class GPG(Row):
    """GPG: Group Policy Gradient (arXiv:2504.02546).

        A_i = (R_i - mean of the group) * N / N_nonzero               N completions of the batch, N_nonzero with R != 0
        L   = -A_i * logprobs

    Mean over all tokens of the step. No ratio, no clip, no KL.
    """

    key = "gpg"
    min_group_size = 2
    choices = row("group_mean nonzero_share none none none token_mean auto none none")


@settings
class MaxRL(Row):
    """MaxRL: maximum likelihood reinforcement learning (arXiv:2602.02710).

        A_i = (R_i - mean(R)) / (mean(R) + 1e-6)                      over the G completions of a prompt; 0 if all fail
        L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A),  rho = exp(logprobs - old_logprobs)

    Mean over all tokens of the step. With rewards of 0 and 1 the mean reward estimates the probability p of solving the
    prompt. The gradient estimates that of log p, and REINFORCE's that of p: each prompt is weighted by 1 / p.
    """

    key = "maxrl"
    min_group_size = 2
    choices = row("group_mean mean_reward token clip none token_mean auto none none")
    metrics = clip_formulas()

    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""


@settings
class DRO(Row):
    """DRO per token: a squared log-ratio instead of a clip (arXiv:2405.19107, as implemented in verl).

        A_i = R_i - mean of the group
        d   = logprobs - old_logprobs                                 per token
        L   = -A_i * logprobs + tau / 2 * d^2

    Mean over all tokens of the step.
    """

    key = "dro"
    min_group_size = 2
    choices = row("group_mean none none token_squared_log_ratio none token_mean auto none none")
    metrics = {"policy/squared_log_ratio": "mean over the trained tokens of d^2"}

    tau: NonNegative = 0.1
    """Strength of the pull of each token towards the policy at the start of the update."""


@settings
class GRPOPassK(Row):
    """verl's pass@k: only the best answer of a group is reinforced, by its lead over the second (arXiv:2503.19595).

        A_i = (R_max - R_second) / (std(R) + 1e-6)                    for the best of a group; 0 for others and at a tie
        L   = -min(rho A, (1 + clip_high) A),                         rho = exp(logprobs - old_logprobs)

    Mean over all tokens of the step. No advantage is negative, so nothing is clipped from below.
    """

    key = "grpo_passk"
    min_group_size = 2
    choices = row("runner_up group_std token clip none token_mean auto none none")
    metrics = clip_formulas()

    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""
