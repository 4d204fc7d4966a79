"""Reductions of a loss per token to one number (docs/rules.md). B rows, T tokens.

The denominator is an argument: it is counted over the WHOLE optimizer step before the first backward pass (RULE 7), so
the sum of the micro-batch results does not depend on the split. `x_BT` outside the mask never matters, even if nan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from posttrain.functional.masks import masked

if TYPE_CHECKING:
    from torch import Tensor


def split_over_tokens(x_B1: Tensor, logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]`: a loss of whole completions, split over tokens so that a weight scales only the token's own part.

    Every token has the value of the completion. Its gradient is its own share, |i| * dx/dlogprobs_t, so that the mean
    over the tokens has exactly the gradient of x. GSPO's loss becomes GSPO-token's (arXiv:2507.18071, eq. 14).
    """
    if not x_B1.requires_grad:
        return x_B1.expand(mask_BT.shape)
    (share_BT,) = torch.autograd.grad(x_B1.sum(), logprobs_BT, retain_graph=True)
    moved_BT = masked(logprobs_BT - logprobs_BT.detach(), mask_BT)
    return x_B1.detach() + mask_BT.sum(dim=-1, keepdim=True) * share_BT * moved_BT


def token_mean(x_BT: Tensor, mask_BT: Tensor, tokens: int) -> Tensor:
    """A1: mean over all tokens of the step."""
    return masked(x_BT, mask_BT).sum() / max(tokens, 1)


def sequence_mean(x_BT: Tensor, mask_BT: Tensor, sequences: int) -> Tensor:
    """A3: mean over each row's tokens, then over the sequences of the step. A token of a long row has less weight."""
    per_row_B = masked(x_BT, mask_BT).sum(dim=-1) / mask_BT.sum(dim=-1).clamp(min=1)
    return per_row_B.sum() / max(sequences, 1)


def sequence_sum(x_BT: Tensor, mask_BT: Tensor, sequences: int) -> Tensor:
    """A4: sum over each row's tokens, then mean over the sequences of the step."""
    return masked(x_BT, mask_BT).sum() / max(sequences, 1)


def fixed_length_mean(x_BT: Tensor, mask_BT: Tensor, sequences: int, length: int) -> Tensor:
    """A5: sum over each row's tokens divided by a constant length, then mean over the sequences (Dr. GRPO)."""
    return masked(x_BT, mask_BT).sum() / (max(sequences, 1) * length)


def weighted_sum(x_BT: Tensor, mask_BT: Tensor, weights_B: Tensor) -> Tensor:
    """Sum over the tokens of each row, times the row's weight. With 1 / (prompts * tokens of the prompt) this is A6."""
    return (masked(x_BT, mask_BT).sum(dim=-1) * weights_B.to(x_BT.dtype)).sum()
