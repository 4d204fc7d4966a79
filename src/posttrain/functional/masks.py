"""Which tokens count, and what carries no gradient. B rows, T tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def without_gradient(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.no_grad` as a decorator that touches nothing of torch before the function is called."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def until_eos(ids_BT: Tensor, eos_ids: Collection[int]) -> Tensor:
    """`[B, T]` bool: True up to and including the first EOS of each row, all True without one (RULE 3).

    EOS is told by its id, never by `token != pad`: pad and EOS may be the same id.

    >>> until_eos(torch.tensor([[5, 2, 2, 7], [5, 6, 7, 8]]), eos_ids={2}).int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 1]]
    """
    is_eos_BT = torch.isin(ids_BT, torch.tensor(sorted(eos_ids), dtype=ids_BT.dtype, device=ids_BT.device))
    return is_eos_BT.cumsum(dim=-1) - is_eos_BT.int() == 0


def last_token(mask_BT: Tensor) -> Tensor:
    """`[B, T]` bool: True at the last masked-in token of each row; a row without any has none.

    >>> last_token(torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]]).bool()).int().tolist()
    [[0, 0, 1, 0], [0, 0, 0, 0]]
    """
    mask_BT = mask_BT.bool()
    tokens_after_BT = mask_BT.flip(-1).cumsum(dim=-1).flip(-1)
    return mask_BT & (tokens_after_BT == 1)


def masked(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`x` where the mask is True or 1, else exactly 0; also where x is nan or infinite (`nan * 0` would be nan)."""
    return torch.where(mask_BT.bool(), x_BT, torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))
