"""Importance ratios and their bounds (docs/rules.md). B rows, T tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from posttrain.functional.masks import at_least_float32, masked

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Bound of absolute log-ratios before `exp` (RULE 16). Outside, the gradient is zero."""


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None) -> Tensor:
    """`[B, T]`: log(policy / old policy) per token, clamped to ±20.

    None for the old policy means that the batch is consumed in this one update. The policy is then its own old policy:
    the ratio has value 1 and carries the plain policy gradient (RULE 6).
    """
    return _difference(logprobs_BT, old_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _difference(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None) -> Tensor:
    """Return the log-ratio in float32, or in float64 if both are (RULE 2)."""
    logprobs_BT = at_least_float32(logprobs_BT)
    anchor_BT = logprobs_BT if old_logprobs_BT is None else old_logprobs_BT
    return logprobs_BT - at_least_float32(anchor_BT).detach()


def token_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None) -> Tensor:
    """`[B, T]`: rho = policy / old policy of each token."""
    return log_ratio(logprobs_BT, old_logprobs_BT).exp()


def sequence_log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    """`[B, 1]`: l = log(policy / old policy) of a whole completion, not clamped: for losses that never take `exp`."""
    return masked(_difference(logprobs_BT, old_logprobs_BT), mask_BT).sum(dim=-1, keepdim=True)


def sequence_product_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    """`[B, 1]`: q = exp(sum of the token log-ratios), the likelihood ratio of the whole completion."""
    per_token_BT = masked(log_ratio(logprobs_BT, old_logprobs_BT), mask_BT)
    return per_token_BT.sum(dim=-1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    """`[B, 1]`: s = exp(mean of the token log-ratios), the geometric mean of the token ratios (GSPO, arXiv:2507.18071).

    A row without trained tokens has ratio 1.
    """
    total_B1 = masked(log_ratio(logprobs_BT, old_logprobs_BT), mask_BT).sum(dim=-1, keepdim=True)
    return (total_B1 / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)).exp()


def sequence_token_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    """`[B, T]`: sg[s] * policy / sg[policy] of each token (GSPO-token, arXiv:2507.18071, eq. 14).

    Its value is the ratio s of the whole completion; its gradient is s times that of the token's log-probability.
    """
    per_token_BT = log_ratio(logprobs_BT, old_logprobs_BT)  # clamped as in s, with no gradient outside the range
    sequence_B1 = sequence_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach()
    return sequence_B1 * (per_token_BT - per_token_BT.detach()).exp()


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(u A, clip(u, 1 - clip_low, 1 + clip_high) A), elementwise; any ratio level (PPO, arXiv:1707.06347, eq. 7).

    With `dual_clip` c > 1 the loss of a negative advantage is at most -c A (arXiv:1912.09729): beyond u > c there is
    no gradient.
    """
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def stopped_by_clip(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Bool: True if `clipped_surrogate` has no gradient: the ratio left the band in the direction of the advantage."""
    return ((ratio < 1 - clip_low) & (advantages < 0)) | ((ratio > 1 + clip_high) & (advantages > 0))


def off_policy_negatives(
    logprobs_BT: Tensor, sampling_logprobs_BT: Tensor | None, advantages_B1: Tensor, mask_BT: Tensor, bound: float
) -> Tensor:
    """`[B, 1]` bool: True for a negative advantage and a mean log(sampler / policy) above `bound` (arXiv:2512.02556).

    Such a completion has already become improbable. A token with a missing or infinite log-probability counts as 0.
    None for the sampler means that the policy itself sampled the completions.
    """
    if sampling_logprobs_BT is None:
        return torch.zeros_like(advantages_B1, dtype=torch.bool)
    gap_BT = sampling_logprobs_BT - logprobs_BT.detach()
    gap_BT = masked(gap_BT, mask_BT.bool() & gap_BT.isfinite())
    mean_B1 = gap_BT.sum(dim=-1, keepdim=True) / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
    return (advantages_B1 < 0) & (mean_B1 > bound)
