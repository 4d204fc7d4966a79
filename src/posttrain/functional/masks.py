"""Masks of tokens, and a decorator for functions without gradient. B rows, T tokens."""

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
    """`torch.no_grad` as a decorator that does not use torch before the function is called."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def until_eos(ids_BT: Tensor, eos_ids: Collection[int]) -> Tensor:
    """`[B, T]` bool: True up to and including the first EOS of each row; all True for a row without EOS (RULE 3).

    EOS is recognised by its id, never by `token != pad`, because pad and EOS may have the same id.

    >>> until_eos(torch.tensor([[5, 2, 2, 7], [5, 6, 7, 8]]), eos_ids={2}).int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 1]]
    """
    is_eos_BT = torch.isin(ids_BT, torch.tensor(sorted(eos_ids), dtype=ids_BT.dtype, device=ids_BT.device))
    return is_eos_BT.cumsum(dim=-1) - is_eos_BT.int() == 0


def last_token(mask_BT: Tensor) -> Tensor:
    """`[B, T]` bool: True at the last masked-in token of each row; all False for a row without one.

    >>> last_token(torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]]).bool()).int().tolist()
    [[0, 0, 1, 0], [0, 0, 0, 0]]
    """
    mask_BT = mask_BT.bool()
    tokens_after_BT = mask_BT.flip(-1).cumsum(dim=-1).flip(-1)
    return mask_BT & (tokens_after_BT == 1)


def at_least_float32(x: Tensor) -> Tensor:
    """Return numbers in less than float32 as float32, and others unchanged (RULE 2)."""
    return x if x.dtype == torch.float64 else x.float()


def masked(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`x` where the mask is True or 1, else exactly 0, even if x is nan or infinite there (`nan * 0` would be nan)."""
    return torch.where(mask_BT.bool(), x_BT, torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))
