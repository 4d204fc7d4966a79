"""Preference losses as scores, margins and links. N pairs, B rows, T tokens; 2N: chosen side first, then rejected.

score    value of an answer under the policy: its log-probability, or the log-ratio to a reference; sum or mean
margin   h = beta * (score of the chosen - score of the rejected answer)
link     a loss per pair as a function of h; every link falls as h rises, and none overflows for any finite h
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import torch

from posttrain.functional.choices import require_choice
from posttrain.functional.masks import masked
from posttrain.functional.ratios import MAX_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor

Link = Callable[["Tensor"], "Tensor"]
Divergence = Literal["reverse_kl", "forward_kl", "jensen_shannon", "alpha"]


def bradley_terry(chosen_N: Tensor, rejected_N: Tensor, margin_N: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(chosen - rejected - margin), without overflow (Bradley and Terry 1952; margins: arXiv:2307.09288).

    The gradient with respect to `chosen` is -sigmoid(-(chosen - rejected - margin)), with respect to `rejected` its
    negative. Equal scores without a margin give log 2.

    >>> bradley_terry(torch.tensor([0.0, 1e4]), torch.tensor([0.0, -1e4])).tolist()
    [0.6931471824645996, 0.0]
    """
    return torch.nn.functional.softplus(rejected_N + margin_N - chosen_N)


def log_sigmoid(x: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(x)


# Scores


def summed(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B]`: the sum over the trained tokens, accumulated in float32 or wider (RULE 32); 0 for an empty row."""
    return masked(x_BT, mask_BT).sum(dim=-1, dtype=torch.promote_types(x_BT.dtype, torch.float32))


def averaged(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B]`: the mean over the trained tokens; 0 for an empty row."""
    return summed(x_BT, mask_BT) / mask_BT.sum(dim=-1).clamp(min=1)


def tail_weighted(x_2NT: Tensor, mask_2NT: Tensor, weight: float) -> Tensor:
    """`[2, N, T]`: x, times `weight` on trained tokens beyond the first n of an answer, where n is the length of the
    shorter answer of its pair (LD-DPO, arXiv:2409.06411)."""
    common_N = mask_2NT.sum(dim=-1).amin(dim=0)
    return torch.where(mask_2NT.cumsum(dim=-1) <= common_N[:, None], x_2NT, weight * x_2NT)


def divergence_score(log_ratio: Tensor, divergence: Divergence, alpha: float = 0.5) -> Tensor:
    """f'(u) at u = exp(log-ratio), up to a constant: it replaces the log-ratio if an f-divergence other than the
    reverse KL keeps a policy near its reference (arXiv:2309.16240). Exponents are clamped to ±20 (RULE 16).
    """
    require_choice("divergence", divergence, get_args(Divergence))
    if divergence == "forward_kl":
        return -torch.expm1(-log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    if divergence == "jensen_shannon":
        return math.log(2) + log_sigmoid(log_ratio)
    if divergence == "alpha":
        return torch.expm1(((alpha - 1) * log_ratio).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) / (alpha - 1)
    return log_ratio


def shaped_reward(average: Tensor, alpha: float) -> Tensor:
    """(1 - p^-alpha) / alpha of a mean log-probability log p; log p itself for alpha = 0 (AlphaPO, arXiv:2501.03884).

    The exponent is clamped to ±20 (RULE 16).
    """
    if alpha == 0:
        return average
    return -torch.expm1((-alpha * average).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) / alpha


HIGHEST_LOG_PROB = -1e-7
"""Upper bound of a mean log-probability when odds are computed: above it the answer is certain (RULE 37)."""


def log1mexp(a: Tensor) -> Tensor:
    """log(1 - exp(a)) for a < 0, without the cancellation that makes it -inf near 0 (Maechler 2012).

    >>> log1mexp(torch.tensor([-1e-10, -50.0])).tolist()
    [-23.025850296020508, -1.9287498933537385e-22]
    """
    near = a > -math.log(2)
    near_a, far_a = torch.where(near, a, -1.0), torch.where(near, -1.0, a)  # each branch and its gradient are finite
    return torch.where(near, torch.log(-torch.expm1(near_a)), torch.log1p(-torch.exp(far_a)))


def log_odds(average: Tensor) -> Tensor:
    """log(p / (1 - p)) of a mean log-probability log p, clamped at -1e-7 with zero gradient above (RULE 37)."""
    a = average.clamp(max=HIGHEST_LOG_PROB)
    return a - log1mexp(a)


# Links


def logistic(h_N: Tensor) -> Tensor:
    """-log sigmoid(h): log 2 at 0 (DPO)."""
    return torch.nn.functional.softplus(-h_N)


def smoothed(link: Link, h_N: Tensor, label_smoothing: float) -> Tensor:
    """The expected loss if labels are swapped with this probability: (1 - e) link(h) + e link(-h).

    With the logistic link this is cDPO: the loss is smallest at sigmoid(h) = 1 - e, not at infinity.
    """
    if label_smoothing == 0:
        return link(h_N)
    return (1 - label_smoothing) * link(h_N) + label_smoothing * link(-h_N)


def unbiased_logistic(h_N: Tensor, label_smoothing: float) -> Tensor:
    """[(1 - e) -log sigmoid(h) - e -log sigmoid(-h)] / (1 - 2 e): if labels are wrong with probability e, its
    expectation is the loss on clean labels. Unbounded below (robust DPO, arXiv:2403.00409)."""
    e = label_smoothing
    return ((1 - e) * logistic(h_N) - e * logistic(-h_N)) / (1 - 2 * e)


def hinge(h_N: Tensor) -> Tensor:
    """max(0, 1 - h): no gradient once the margin is 1 (SLiC, arXiv:2305.10425)."""
    return (1 - h_N).relu()


def reverse_cross_entropy(h_N: Tensor, label_smoothing: float) -> Tensor:
    """KL([s(h), s(-h)] || [1 - e, e]), s the sigmoid: the model's preference against the smoothed label (EXO,
    arXiv:2402.00856). Mode-seeking; the logistic link is the same KL with its arguments exchanged."""
    won_N, lost_N = torch.sigmoid(h_N), torch.sigmoid(-h_N)
    log_won, log_lost = math.log1p(-label_smoothing), math.log(label_smoothing)
    return won_N * (log_sigmoid(h_N) - log_won) + lost_N * (log_sigmoid(-h_N) - log_lost)


def log_ratio_modulated(h_N: Tensor, tau: float) -> Tensor:
    """(1 - g) -log sigmoid(h) + g exp(-h), g = sigmoid(h / tau): logistic for wrong pairs, exponential for right ones
    (DiscoPOP, arXiv:2406.08414)."""
    weighted_exponential_N = (log_sigmoid(h_N / tau) - h_N).exp()  # g exp(-h) in one exponent: 0 * inf cannot arise
    return torch.sigmoid(-h_N / tau) * logistic(h_N) + weighted_exponential_N


# Coupling of the pairs of a step


def matched_by_rank(x_N: Tensor, y_N: Tensor) -> Tensor:
    """`[N]`: for each x the y of the same rank, which is the optimal transport between the two in one dimension (AOT,
    arXiv:2406.05882).

    >>> matched_by_rank(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([10.0, 30.0, 20.0])).tolist()
    [30.0, 10.0, 20.0]
    """
    matched_N = torch.empty_like(y_N)
    matched_N[x_N.argsort(stable=True)] = y_N.sort().values
    return matched_N
