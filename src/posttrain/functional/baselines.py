"""From rewards to advantages: baselines, scales and returns (docs/rules.md).

P prompts, G completions per prompt, B = P * G rows, T tokens.

`scored_PG` is False where no reward could be computed; such an entry takes part in no statistic, and its own value is
meaningless (the caller masks it).
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional.masks import last_token, masked

EQUAL_REWARDS = 1e-8
"""Rewards of a group that differ by less than this times max(1, |mean|) count as equal (RULE 11)."""


def group_mean(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, 1]`: mean over the scored completions of each prompt."""
    total_P1 = masked(rewards_PG, scored_PG).sum(dim=-1, keepdim=True)
    return total_P1 / scored_PG.sum(dim=-1, keepdim=True).clamp(min=1)


def leave_one_out_mean(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, G]`: mean over the *other* scored completions of the prompt; the own reward where there is no other."""
    total_P1 = masked(rewards_PG, scored_PG).sum(dim=-1, keepdim=True)
    others_PG = scored_PG.sum(dim=-1, keepdim=True) - scored_PG.int()
    return torch.where(others_PG > 0, (total_P1 - masked(rewards_PG, scored_PG)) / others_PG.clamp(min=1), rewards_PG)


def batch_mean(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Scalar: mean over all scored completions of the batch."""
    return masked(rewards_PG, scored_PG).sum() / scored_PG.sum().clamp(min=1)


def group_std(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, 1]`: standard deviation over the scored completions of each prompt, dividing by their number minus 1."""
    centered_PG = masked(rewards_PG - group_mean(rewards_PG, scored_PG), scored_PG)
    degrees_P1 = (scored_PG.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
    return (centered_PG.square().sum(dim=-1, keepdim=True) / degrees_P1).sqrt()


def has_signal(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, 1]` bool: do the scored rewards of the prompt differ at all? (RULE 11)

    Largest against smallest, not against the mean: the float32 mean of equal numbers is not that number.
    """
    largest_P1 = rewards_PG.masked_fill(~scored_PG, -torch.inf).amax(dim=-1, keepdim=True)
    smallest_P1 = rewards_PG.masked_fill(~scored_PG, torch.inf).amin(dim=-1, keepdim=True)
    tolerance_P1 = EQUAL_REWARDS * group_mean(rewards_PG, scored_PG).abs().clamp(min=1)
    return largest_P1 - smallest_P1 > tolerance_P1


def center_by_group(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, G]`: reward minus group mean; exactly 0 in a group of equal rewards, whatever the rounding."""
    centered_PG = rewards_PG - group_mean(rewards_PG, scored_PG)
    return masked(centered_PG, scored_PG & has_signal(rewards_PG, scored_PG))


def return_to_go(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """`[B, T]`: G_t = sum over s >= t of gamma^(s-t) * r_s, counting masked-in tokens only (RULE 17), 0 elsewhere.

    >>> return_to_go(torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[1, 0, 1]]).bool(), gamma=0.5).tolist()
    [[0.5, 0.0, 1.0]]
    """
    rewards_BT = masked(rewards_BT, mask_BT)
    if gamma == 1.0:
        return masked(rewards_BT.flip(-1).cumsum(dim=-1).flip(-1), mask_BT)
    returns_BT = torch.zeros_like(rewards_BT)
    running_B = rewards_BT.new_zeros(rewards_BT.shape[0])
    for t in range(rewards_BT.shape[1] - 1, -1, -1):
        running_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * running_B, running_B)
        returns_BT[:, t] = running_B
    return masked(returns_BT, mask_BT)


def place_on_last_token(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]`: the reward of a completion on its last trained token, 0 elsewhere."""
    return masked(rewards_B[:, None].expand(mask_BT.shape), last_token(mask_BT))
