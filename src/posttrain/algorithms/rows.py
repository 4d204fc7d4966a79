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
