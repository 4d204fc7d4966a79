"""Preference pairs: how likely it is that the better answer is called the better one. N pairs."""

from __future__ import annotations

import torch
from torch import Tensor


def bradley_terry(chosen_N: Tensor, rejected_N: Tensor, margin_N: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(chosen - rejected - margin), without overflow (Bradley and Terry 1952; margins: arXiv:2307.09288).

    The gradient with respect to `chosen` is -sigmoid(-(chosen - rejected - margin)), with respect to `rejected` its
    negative. Equal scores without a margin give log 2.

    >>> bradley_terry(torch.tensor([0.0, 1e4]), torch.tensor([0.0, -1e4])).tolist()
    [0.6931471824645996, 0.0]
    """
    return torch.nn.functional.softplus(rejected_N + margin_N - chosen_N)
