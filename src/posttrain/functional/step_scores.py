"""Scores of single steps: the loss that trains them, and their aggregation into one score of a solution.

S steps of a solution; z are logits, p = sigmoid(z) the probability that a step is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch

from posttrain.functional.choices import require_choice

if TYPE_CHECKING:
    from torch import Tensor

Aggregate = Literal["min", "prod", "last", "mean"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)


def binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """-y log sigmoid(z) - (1 - y) log sigmoid(-z), for labels y from 0 to 1, without overflow; its gradient is p - y.

    >>> import torch
    >>> binary_cross_entropy(torch.tensor([0.0, 1e4, 1e4]), torch.tensor([0.5, 1.0, 0.0])).tolist()
    [0.6931471824645996, 0.0, 10000.0]
    """
    return torch.nn.functional.softplus(z) - y * z


def aggregate(probabilities_S: Tensor, how: Aggregate) -> Tensor:
    """Return one score for a solution: its worst step, the product of all steps, its last step, or their mean.

    None of them rewards additional steps, as a sum would: `prod` and `min` can only fall, the others stay at most 1.

    >>> import torch
    >>> [round(float(aggregate(torch.tensor([0.5, 0.8, 1.0]), how)), 4) for how in AGGREGATES]
    [0.5, 0.4, 1.0, 0.7667]
    """
    require_choice("how", how, AGGREGATES)
    if how == "min":
        return probabilities_S.min()
    if how == "prod":
        return probabilities_S.prod()
    return probabilities_S[-1] if how == "last" else probabilities_S.mean()
