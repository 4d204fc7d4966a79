"""Trust regions, other than PPO's clip (see `ratios`), that keep an update near the sampling policy; docs/rules.md.

Each function is one trust region: `[B, T]` (or `[B, 1]`, per completion) in, the same shape out. A weight carries no
gradient: the loss is -weight * A * logprobs. A gate is differentiated: the loss is -A * gate. A selection marks tokens
of the whole optimizer step, so it is made once per update from all its rows.

B rows, T tokens; rho = exp(d), d = logprobs - old_logprobs, which the caller clamps to ±20 (RULE 16).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import torch

from posttrain.functional.choices import require_choice
from posttrain.functional.masks import masked

if TYPE_CHECKING:
    from torch import Tensor

Divergence = Literal["tv", "kl"]

LOWEST_LOG_PRODUCT = math.log(1e-8)
"""Lower bound of log q of a whole completion (VESPO). The upper bound is that of every log-ratio."""
NO_OTHER_TOKEN = 1e-8
"""Constant added to the probability 1 - p of all other tokens before a logarithm, as in verl: p may round to 1."""


# Functions of a single token or completion


def weight_clip(ratio: Tensor, low: float | None, high: float | None) -> Tensor:
    """sg[clip(u, low, high)]: an importance weight with two absolute bounds; None for no bound (RULE 23).

    Only the weight is bounded; every token keeps its gradient (CISPO: MiniMax-M1, arXiv:2506.13585; with only an
    absolute upper bound: ScaleRL, arXiv:2510.13786).
    """
    return ratio.detach().clamp(low, high) if (low, high) != (None, None) else ratio.detach()


def soft_gate(ratio: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """f(u) = 4 / tau * sigmoid(tau (u - 1)), tau by the sign of A (SAPO, arXiv:2511.20347).

    df/du = 4 p (1 - p) with p = sigmoid(tau (u - 1)): 1 at u = 1, fading on both sides, faster for larger tau.
    """
    tau = _by(advantages > 0, tau_pos, tau_neg, ratio)
    return 4 / tau * torch.sigmoid(tau * (ratio - 1))


def kernel(
    ratio: Tensor, advantages: Tensor, *, k_pos: float, lambda_pos: float, k_neg: float, lambda_neg: float
) -> Tensor:
    """sg[phi(q)], phi(q) = q^k exp(lambda (1 - q)), k and lambda by the sign of A (VESPO, arXiv:2602.10693).

    phi(1) = 1; it rises with q up to q = k / lambda and decays beyond. log q is at least log 1e-8.
    """
    log_q = ratio.detach().log().clamp(min=LOWEST_LOG_PRODUCT)
    power, decay = _by(advantages >= 0, k_pos, k_neg, ratio), _by(advantages >= 0, lambda_pos, lambda_neg, ratio)
    return (decay + power * log_q - decay * log_q.exp()).exp()


def _by(condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """Return one of two settings by the condition, in the precision of `like`."""
    return torch.where(condition, like.new_full((), yes), like.new_full((), no))  # no copy from the host


def log_clip(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """z: min(d, high) where A > 0, max(d, -low) elsewhere: clipped in log space, only in the advantage's direction.

    The caller averages z over the tokens of a completion before `exp` (GMPO, arXiv:2507.20673). A token beyond its
    bound has no gradient.
    """
    return torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-low))


def divergence(logprobs: Tensor, old_logprobs: Tensor, kind: Divergence) -> Tensor:
    """Change of the sampled token's probability, with all other tokens as one outcome; without gradient.

    tv: |p - p_old|.   kl: p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)).
    """
    require_choice("kind", kind, get_args(Divergence))
    p, p_old = (x.detach().clamp(max=0).exp() for x in (logprobs, old_logprobs))
    if kind == "tv":
        return (p - p_old).abs()
    others = ((1 - p_old + NO_OTHER_TOKEN) / (1 - p + NO_OTHER_TOKEN)).log()
    return p_old * (old_logprobs - logprobs).detach() + (1 - p_old) * others


def moved_too_far(
    logprobs: Tensor, old_logprobs: Tensor | None, low: float, high: float, kind: Divergence = "tv"
) -> tuple[Tensor, Tensor]:
    """Two bools: True if the probability has fallen by a divergence above `low`, or risen by one above `high`.

    Without old log-probabilities nothing has moved.
    """
    if old_logprobs is None:
        return torch.zeros_like(logprobs, dtype=torch.bool), torch.zeros_like(logprobs, dtype=torch.bool)
    moved, change = divergence(logprobs, old_logprobs, kind), (logprobs - old_logprobs).detach()
    return (change < 0) & (moved > low), (change > 0) & (moved > high)


def divergence_mask(
    logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, low: float, high: float, kind: Divergence = "tv"
) -> Tensor:
    """Bool: True if the token may still move in the direction of its advantage (DPPO, arXiv:2602.04879).

    A > 0: False if its probability has risen too far. A <= 0: False if it has fallen too far. A move back is always
    allowed.
    """
    fallen, risen = moved_too_far(logprobs, old_logprobs, low, high, kind)
    return torch.where(advantages > 0, ~risen, ~fallen)


# Choices among all tokens of an optimizer step


def covariance(logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]`: (logprobs - mean)(A - mean), means over the trained tokens of these rows; 0 elsewhere, no gradient.

    Tokens with a large covariance make the entropy fall (arXiv:2505.22617).
    """
    tokens = mask_BT.sum().clamp(min=1)
    off_mean = [x - x.sum() / tokens for x in (masked(y.detach(), mask_BT) for y in (logprobs_BT, advantages_BT))]
    return masked(off_mean[0] * off_mean[1], mask_BT)


def clip_cov(
    covariance_BT: Tensor,
    candidates_BT: Tensor,
    mask_BT: Tensor,
    *,
    cov_low: float,
    cov_high: float,
    share: float,
    draw_BT: Tensor,
) -> Tensor:
    """`[B, T]` bool: the tokens that Clip-Cov removes from the update (arXiv:2505.22617).

    These are max(1, floor(share * trained tokens)) of the candidates (tokens that are not clipped) with
    cov_low < covariance < cov_high: those with the lowest random numbers in `draw_BT` (`random_numbers`, RULE 24).
    """
    mask_BT = mask_BT.bool()
    between_BT = (covariance_BT > cov_low) & (covariance_BT < cov_high)
    return _first(draw_BT, mask_BT & candidates_BT & between_BT, _count(share, mask_BT))


def kl_cov(covariance_BT: Tensor, mask_BT: Tensor, share: float, draw_BT: Tensor) -> Tensor:
    """`[B, T]` bool: the max(1, floor(share * trained tokens)) tokens of largest covariance (KL-Cov, arXiv:2505.22617).

    `draw_BT` decides among equal values, so that the order of the rows does not matter.
    """
    return _first(-covariance_BT, mask_BT, _count(share, mask_BT), draw_BT)


def top_entropy(entropy_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """`[B, T]` bool: the share of trained tokens with the largest entropy (Beyond the 80/20 rule, arXiv:2506.01939).

    These are the tokens at or above the quantile 1 - share, interpolated as in TRL's top_entropy_quantile.

    >>> mask_BT = torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> top_entropy(torch.tensor([[0.1, 0.4, 0.2], [0.9, 0.3, 9.0]]), mask_BT, share=0.4).tolist()
    [[False, True, False], [True, False, False]]
    """
    mask_BT = mask_BT.bool()
    ascending_N = entropy_BT[mask_BT].double().sort().values
    if not len(ascending_N):
        return mask_BT
    place = (1 - share) * (len(ascending_N) - 1)
    below, above = ascending_N[math.floor(place)], ascending_N[math.ceil(place)]
    return mask_BT & (entropy_BT >= torch.lerp(below, above, place % 1))


def random_numbers(rows_B: Tensor, steps_BT: Tensor | int, columns: int, seed: int) -> Tensor:
    """`[B, T]` int64 in [0, 2^32): one number for each (seed, step, row, position), independent of the order of rows.

    >>> a = random_numbers(torch.tensor([0, 1, 2]), 0, columns=3, seed=7)
    >>> bool((random_numbers(torch.tensor([2, 0]), 0, columns=3, seed=7) == a[[2, 0]]).all())
    True
    """
    state = torch.full((len(rows_B), columns), seed, dtype=torch.int64, device=rows_B.device)
    for word in (steps_BT, rows_B[:, None], torch.arange(columns, device=rows_B.device)):
        state = _mix(state * 0x9E3779B1 + word + 1)
    return state


def _mix(x: Tensor) -> Tensor:
    """The finaliser of MurmurHash3, on the low 32 bits: a bijection in which every bit depends on every other."""
    x = x & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _count(share: float, mask_BT: Tensor) -> int:
    return max(1, int(share * int(mask_BT.sum())))


def _first(key_BT: Tensor, candidates_BT: Tensor, count: int, tie_break_BT: Tensor | None = None) -> Tensor:
    """`[B, T]` bool: the `count` candidates with the lowest keys, or all of them if they are fewer."""
    places = candidates_BT.flatten().nonzero().flatten()
    for key in (tie_break_BT, key_BT):  # the last sort is stable, so equal keys keep the order of the sort before
        if key is not None:
            places = places[key.flatten()[places].argsort(stable=True)]
    chosen = torch.zeros_like(candidates_BT, dtype=torch.bool).flatten()
    chosen[places[:count]] = True
    return chosen.reshape(candidates_BT.shape)
