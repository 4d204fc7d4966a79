"""Conversion of values per token into values per turn, and back. B rows, T tokens, S turns of the longest row.

A turn is a run of consecutive tokens in the mask. The text of the environment separates two turns, in one or more
pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from posttrain.functional.masks import masked

if TYPE_CHECKING:
    from torch import Tensor


def turns_of(mask_BT: Tensor) -> Tensor:
    """`[B, T]`: the turn of each token, counted from 0 within its row; -1 outside the mask.

    >>> turns_of(torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0]])).tolist()
    [[-1, 0, 0, -1, -1, 1], [0, -1, -1, -1, -1, -1]]
    """
    mask_BT = mask_BT.bool()
    return (turn_begins(mask_BT).cumsum(dim=-1) - 1).masked_fill(~mask_BT, -1)


def turn_begins(mask_BT: Tensor) -> Tensor:
    """`[B, T]` bool: True at the first token of each turn."""
    mask_BT = mask_BT.bool()
    return mask_BT & ~torch.nn.functional.pad(mask_BT[:, :-1], (1, 0))


def number_of_turns(turns_BT: Tensor) -> Tensor:
    """`[B]` number of turns of each row; `turns_BT` comes from `turns_of`."""
    if not turns_BT.shape[1]:
        return turns_BT.new_zeros(len(turns_BT))
    return turns_BT.amax(dim=-1) + 1


def sum_over_turns(x_BT: Tensor, turns_BT: Tensor, count: int) -> Tensor:
    """`[B, S]`: the sum over the tokens of each of `count` turns; 0 for a turn that a row does not have.

    >>> turns_BT = turns_of(torch.tensor([[0, 1, 1, 0, 1]]))
    >>> sum_over_turns(torch.tensor([[9.0, 1.0, 2.0, 9.0, 4.0]]), turns_BT, 3).tolist()
    [[3.0, 4.0, 0.0]]
    """
    inside_BT = turns_BT >= 0
    return x_BT.new_zeros(len(x_BT), count).scatter_add(1, turns_BT.clamp(min=0), masked(x_BT, inside_BT))


def on_tokens(x_BS: Tensor, turns_BT: Tensor) -> Tensor:
    """`[B, T]`: the value of each turn on all of its tokens, 0 elsewhere.

    >>> on_tokens(torch.tensor([[3.0, 4.0]]), turns_of(torch.tensor([[0, 1, 1, 0, 1]]))).tolist()
    [[0.0, 3.0, 3.0, 0.0, 4.0]]
    """
    return masked(x_BS.gather(1, turns_BT.clamp(min=0)), turns_BT >= 0)


def discounted_to_go(rewards_BS: Tensor, discount: float) -> Tensor:
    """`[B, S]`: G_k = r_k + discount * G_k+1.

    >>> discounted_to_go(torch.tensor([[1.0, 0.0, 4.0]]), 0.5).tolist()
    [[2.0, 2.0, 4.0]]
    """
    columns = [rewards_BS[:, -1]]
    for k in range(rewards_BS.shape[1] - 2, -1, -1):
        columns.append(rewards_BS[:, k] + discount * columns[-1])
    return torch.stack(columns[::-1], dim=-1)
