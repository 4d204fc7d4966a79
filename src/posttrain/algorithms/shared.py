"""What several algorithm files call: advantages, off-policy weights, the KL term, the entropy bonus."""

from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.errors import ConfigError
from posttrain.functional.baselines import center_by_group, group_std
from posttrain.functional.kl import k1, kl_estimate
from posttrain.functional.masks import masked
from posttrain.functional.reductions import split_over_tokens, token_mean
from posttrain.functional.trust_regions import random_numbers
from posttrain.types import Batch, Experience, Outputs, Tensor, Totals

STD_EPSILON = 1e-6
"""Added to the standard deviation, not under the root (RULE 11)."""


def on_trained_tokens(outputs: Outputs | Tensor, batch: Batch) -> Outputs:
    """The outputs with gradient exactly 0 outside the mask, also where what stands there makes a loss nan or infinite.

    The reductions mask values, which is not enough: the backward pass of `exp(nan)` is `0 * nan`.
    """
    outputs, mask_BT = Outputs.of(outputs, batch), batch.completion_mask_BT
    values_BT = None if outputs.values_BT is None else masked(outputs.values_BT, mask_BT)
    return replace(outputs, logprobs_BT=masked(outputs.logprobs_BT, mask_BT), values_BT=values_BT)


def advantages_of(batch: Batch) -> Tensor:
    """`[B, T]` advantages: constants for the gradient, whatever they were computed from (RULE 5)."""
    if batch.advantages_BT is None:
        raise ConfigError(
            given="a batch without advantages",
            fix="Build it with Batch.from_experience(experience, algorithm.advantages(experience)).",
        )
    return batch.advantages_BT.detach()


def group_normalized(experience: Experience) -> Tensor:
    """`[B, T]` (R - mean) / (std + 1e-6) over the completions of a prompt; exactly 0 if their rewards are equal."""
    rewards_PG, scored_PG = experience.rewards_PG, experience.scored_PG
    centered_PG = center_by_group(rewards_PG, scored_PG)
    return experience.broadcast(centered_PG / (group_std(rewards_PG, scored_PG) + STD_EPSILON))


def per_completion(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, 1]`: the mean over the trained tokens; of an advantage that is the same on each of them, the advantage."""
    return masked(x_BT, mask_BT).sum(dim=-1, keepdim=True) / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)


def as_ratio(ratio: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Advantages and mask in the shape of a ratio: per token, or `[B, 1]` per completion."""
    advantages_BT, mask_BT = advantages_of(batch), batch.completion_mask_BT
    if ratio.shape == mask_BT.shape:
        return advantages_BT, mask_BT
    return per_completion(advantages_BT, mask_BT), mask_BT.any(dim=-1, keepdim=True)


def draw_for(batch: Batch, seed: int) -> Tensor:
    """`[B, T]` random numbers: of each token its own, by seed, policy version, row and position (RULE 24)."""
    rows, columns = batch.completion_mask_BT.shape
    rows_B = torch.arange(rows, device=batch.groups_B.device) if batch.row_ids_B is None else batch.row_ids_B
    return random_numbers(rows_B, 0 if batch.versions_BT is None else batch.versions_BT, columns, seed)


def weights_of(batch: Batch) -> Tensor | None:
    """`[B, T]`: the off-policy weight of each token, 0 for one whose policy term does not count; None: all 1."""
    if batch.kept_BT is None:
        return batch.correction_BT
    return batch.kept_BT.float() if batch.correction_BT is None else masked(batch.correction_BT, batch.kept_BT)


def weighted(loss_BT: Tensor, batch: Batch) -> Tensor:
    """The policy term times the weight of each token; never the KL term."""
    weights_BT = weights_of(batch)
    return loss_BT if weights_BT is None else weights_BT * loss_BT


def weighted_completions(loss_B1: Tensor, outputs: Outputs, batch: Batch) -> Tensor:
    """`[B, T]`: a loss per completion on each of its tokens; an off-policy weight acts on each token's own part."""
    weights_BT = weights_of(batch)
    if weights_BT is None:
        return loss_B1.expand(batch.completion_mask_BT.shape)
    return weights_BT * split_over_tokens(loss_B1, outputs.logprobs_BT, batch.completion_mask_BT)


def require_whole_update(batch: Batch, totals: Totals, missing: str) -> None:
    """Refuse a part of an update where its rows depend on each other: every split would give other numbers."""
    in_loss = int(batch.completion_mask_BT.sum())
    if in_loss == totals.tokens:
        return
    rejected = 0
    if batch.correction_BT is not None:
        rejected = int(((batch.correction_BT == 0) & ~batch.completion_mask_BT).sum())
    if rejected and in_loss + rejected == totals.tokens:
        raise ConfigError(
            given=f"totals that count {totals.tokens} tokens, {rejected} of which the correction rejects and takes out "
            "of the denominator",
            allowed="totals of the batch that algorithm.prepare returns",
            fix=f"Call batch = algorithm.prepare(batch) with {missing}, then count_totals(batch), then the loss.",
        )
    raise ConfigError(
        given="some rows of an update whose rows depend on each other, and nothing that was computed over all",
        allowed="the whole update, or a batch from algorithm.to_batch and algorithm.prepare",
        fix=f"Call algorithm.prepare(batch) with {missing} before the batch is split.",
    )


def reference_of(batch: Batch, setting: str) -> Tensor:
    """The reference log-probabilities; asking for a KL to nothing is an error (RULE 15)."""
    if batch.ref_logprobs_BT is None:
        raise ConfigError(
            given=f"{setting} > 0, but there are no reference log-probabilities",
            allowed=f"{setting} = 0, or ref_logprobs_BT",
            fix=f"Set {setting} = 0, or pass ref_logprobs_BT.",
        )
    return batch.ref_logprobs_BT.detach()


def refuse_half_a_clip(clip_low: float | None, clip_high: float | None) -> None:
    if (clip_low is None) != (clip_high is None):
        raise ConfigError(
            given=f"clip_low = {clip_low}, clip_high = {clip_high}",
            allowed="both numbers, or both None",
            fix="Set both clip_low and clip_high, for example 0.2.",
        )


def sampled_kl(experience: Experience) -> Tensor:
    """`[B, T]` k1 between the policy that the update starts from and the reference, for a penalty in the reward."""
    if experience.old_logprobs_BT is None or experience.ref_logprobs_BT is None:
        raise ConfigError(
            given="kl_coef > 0, but old or reference log-probabilities are missing",
            allowed="kl_coef = 0, or old_logprobs_BT and ref_logprobs_BT",
            fix="Pass old_logprobs_BT and ref_logprobs_BT, or set kl_coef = 0.",
        )
    return masked(k1(experience.old_logprobs_BT, experience.ref_logprobs_BT), experience.completion_mask_BT)


def kl_term(outputs: Outputs, batch: Batch, kl_coef: float, kl_estimator: str) -> Tensor | float:
    """`[B, T]` kl_coef * KL estimate for the loss; 0 without a coefficient, where no reference is read."""
    if kl_coef == 0:
        return 0.0
    ref_BT = reference_of(batch, "kl_coef")
    return kl_coef * kl_estimate(kl_estimator, outputs.logprobs_BT, ref_BT, batch.old_logprobs_BT)


def entropy_bonus(outputs: Outputs, batch: Batch, totals: Totals, entropy_coef: float) -> Tensor | float:
    """-entropy_coef * mean entropy over the tokens of the step, to be added to the loss (RULE 9)."""
    if entropy_coef == 0:
        return 0.0
    if outputs.entropy_BT is None:
        raise ConfigError(
            given=f"entropy_coef = {entropy_coef}, but the forward pass gave no entropy",
            fix="Pass Outputs(logprobs_BT=..., entropy_BT=...), or set entropy_coef = 0.",
        )
    return -entropy_coef * token_mean(outputs.entropy_BT, batch.completion_mask_BT, totals.tokens)
