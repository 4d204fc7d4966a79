"""Functions that several algorithm files call: advantages, off-policy weights, the KL term, the entropy bonus."""

from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.errors import ConfigError
from posttrain.functional.baselines import center_by_group, group_std
from posttrain.functional.kl import kl_estimate
from posttrain.functional.masks import masked
from posttrain.functional.reductions import split_over_tokens, token_mean
from posttrain.functional.trust_regions import random_numbers, top_entropy
from posttrain.types import Batch, Experience, Outputs, Tensor, Totals

STD_EPSILON = 1e-6
"""Constant that is added to the standard deviation, not under the root (RULE 11)."""


def on_trained_tokens(outputs: Outputs | Tensor, batch: Batch) -> Outputs:
    """Return the outputs with a gradient of exactly 0 outside the mask, even if values there make the loss nan or
    infinite. Masking values in the reductions is not enough: the backward pass of `exp(nan)` is `0 * nan`.
    """
    outputs, mask_BT = Outputs.of(outputs, batch), batch.completion_mask_BT
    values_BT = None if outputs.values_BT is None else masked(outputs.values_BT, mask_BT)
    return replace(outputs, logprobs_BT=masked(outputs.logprobs_BT, mask_BT), values_BT=values_BT)


def advantages_of(batch: Batch) -> Tensor:
    """`[B, T]` advantages, detached: they never carry a gradient (RULE 5)."""
    if batch.advantages_BT is None:
        raise ConfigError(
            given="a batch without advantages",
            fix="Build it with Batch.from_experience(experience, algorithm.advantages(experience)).",
        )
    return batch.advantages_BT.detach()


def group_normalized(experience: Experience) -> Tensor:
    """`[B, T]` (R - mean) / (std + 1e-6) over the completions of a prompt; exactly 0 for equal rewards."""
    rewards_PG, scored_PG = experience.rewards_PG, experience.scored_PG
    centered_PG = center_by_group(rewards_PG, scored_PG)
    return experience.broadcast(centered_PG / (group_std(rewards_PG, scored_PG) + STD_EPSILON))


def per_completion(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, 1]`: the mean over the trained tokens, which is the advantage itself if all tokens have the same one."""
    return masked(x_BT, mask_BT).sum(dim=-1, keepdim=True) / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)


def draw_for(batch: Batch, seed: int) -> Tensor:
    """`[B, T]` random numbers, one per token, which depend on seed, policy version, row and position (RULE 24)."""
    rows, columns = batch.completion_mask_BT.shape
    rows_B = torch.arange(rows, device=batch.groups_B.device) if batch.row_ids_B is None else batch.row_ids_B
    return random_numbers(rows_B, 0 if batch.versions_BT is None else batch.versions_BT, columns, seed)


def keep_top_entropy(batch: Batch, entropy_BT: Tensor | None, share: float, *, required: bool = False) -> Batch:
    """Return the batch with `kept_BT`, the share of the tokens with the largest entropy, chosen once per update.
    Without `kept_BT` all tokens count."""
    if share == 1 or batch.kept_BT is not None:
        return batch
    if entropy_BT is not None:
        return replace(batch, kept_BT=top_entropy(entropy_BT.detach(), batch.completion_mask_BT, share))
    if not required:
        return batch
    raise ConfigError(
        given=f"top_entropy_quantile = {share}, but no entropy of the tokens",
        allowed="top_entropy_quantile = 1, or a batch for prepare with current_entropy_BT",
        fix="Pass Outputs(logprobs_BT=..., entropy_BT=...) of the whole update, or prepare the batch.",
    )


def weights_of(batch: Batch) -> Tensor | None:
    """`[B, T]`: the off-policy weight of each token, 0 for a token without a policy term; None if all are 1."""
    if batch.kept_BT is None:
        return batch.correction_BT
    return batch.kept_BT.float() if batch.correction_BT is None else masked(batch.correction_BT, batch.kept_BT)


def weighted(loss_BT: Tensor, batch: Batch) -> Tensor:
    """Multiply the policy term by the weight of each token. The KL term is never weighted."""
    weights_BT = weights_of(batch)
    return loss_BT if weights_BT is None else weights_BT * loss_BT


def weighted_completions(loss_B1: Tensor, outputs: Outputs, batch: Batch) -> Tensor:
    """`[B, T]`: the loss of a completion on each token. An off-policy weight scales only its token's own part."""
    weights_BT = weights_of(batch)
    if weights_BT is None:
        return loss_B1.expand(batch.completion_mask_BT.shape)
    return weights_BT * split_over_tokens(loss_B1, outputs.logprobs_BT, batch.completion_mask_BT)


def reference_of(batch: Batch, setting: str) -> Tensor:
    """Return the reference log-probabilities. A KL without them is an error (RULE 15)."""
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


def kl_term(outputs: Outputs, batch: Batch, kl_coef: float, kl_estimator: str) -> Tensor | float:
    """`[B, T]` kl_coef * KL estimate for the loss. If kl_coef is 0, return 0 without reading a reference."""
    if kl_coef == 0:
        return 0.0
    ref_BT = reference_of(batch, "kl_coef")
    return kl_coef * kl_estimate(kl_estimator, outputs.logprobs_BT, ref_BT, batch.old_logprobs_BT)


def entropy_bonus(outputs: Outputs, batch: Batch, totals: Totals, entropy_coef: float) -> Tensor | float:
    """Return -entropy_coef * mean entropy over the tokens of the step, to be added to the loss (RULE 9)."""
    if entropy_coef == 0:
        return 0.0
    if outputs.entropy_BT is None:
        raise ConfigError(
            given=f"entropy_coef = {entropy_coef}, but the forward pass gave no entropy",
            fix="Pass Outputs(logprobs_BT=..., entropy_BT=...), or set entropy_coef = 0.",
        )
    return -entropy_coef * token_mean(outputs.entropy_BT, batch.completion_mask_BT, totals.tokens)
