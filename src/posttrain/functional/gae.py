"""Generalised advantage estimation, and the loss that trains the critic. B rows, T tokens.

`values_BT[:, t]` is the value of the state *before* token t.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from posttrain.functional.masks import masked

if TYPE_CHECKING:
    from torch import Tensor


def gae(
    token_rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """`[B, T]` advantages and `[B, T]` returns, 0 outside the mask (arXiv:1506.02438, eq. 16).

        delta_t = r_t + gamma V_t' - V_t          A_t = delta_t + gamma lam A_t'          return_t = A_t + V_t

    t' is the next token *in the mask*: tool output in between is skipped and not discounted (RULE 17). After the last
    token V = 0, even if the completion was truncated.

    >>> rewards_BT, values_BT = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.5, 0.5]])
    >>> advantages_BT, returns_BT = gae(rewards_BT, values_BT, torch.ones(1, 3, dtype=torch.bool), 1.0, 0.0)
    >>> advantages_BT.tolist(), returns_BT.tolist()
    ([[0.0, 0.0, 0.5]], [[0.5, 0.5, 1.0]])
    """
    mask_BT = mask_BT.bool()
    rewards_BT, values_BT = masked(token_rewards_BT, mask_BT), masked(values_BT, mask_BT)
    columns: list[Tensor] = []
    later_B = next_value_B = values_BT.new_zeros(values_BT.shape[0])
    for t in range(mask_BT.shape[1] - 1, -1, -1):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        later_B = torch.where(mask_BT[:, t], delta_B + gamma * lam * later_B, later_B)
        next_value_B = torch.where(mask_BT[:, t], values_BT[:, t], next_value_B)
        columns.append(later_B)
    advantages_BT = masked(torch.stack(columns[::-1], dim=-1), mask_BT) if columns else torch.zeros_like(values_BT)
    return advantages_BT, advantages_BT + values_BT


def value_loss(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, value_clip: float | None) -> Tensor:
    """`[B, T]`: ½ max((V - R)², (clip(V, V_old ± value_clip) - R)²); ½ (V - R)² with None.

    >>> value_loss(torch.tensor(0.9), torch.tensor(0.5), torch.tensor(1.0), value_clip=0.2)
    tensor(0.0450)
    """
    loss_BT = (values_BT - returns_BT).square()
    if value_clip is not None:
        loss_BT = torch.maximum(loss_BT, (clipped_values(values_BT, old_values_BT, value_clip) - returns_BT).square())
    return loss_BT / 2


def clipped_values(values_BT: Tensor, old_values_BT: Tensor, value_clip: float) -> Tensor:
    """`[B, T]`: the values, clipped to within `value_clip` of the values before the update."""
    return old_values_BT + (values_BT - old_values_BT).clamp(-value_clip, value_clip)


def outside_value_clip(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, value_clip: float) -> Tensor:
    """Bool: True if the clipped branch of `value_loss` is the larger one, so that the value has no gradient."""
    clipped_BT = clipped_values(values_BT, old_values_BT, value_clip)
    return (clipped_BT - returns_BT).square() > (values_BT - returns_BT).square()
