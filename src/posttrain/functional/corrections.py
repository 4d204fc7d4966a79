"""Corrections for the difference between the policy that sampled and the policy that an update starts from.

mu is the sampler (another engine, other numerics, perhaps older weights); anchor is the trainer's log-probabilities:

    delta = log anchor - log mu          w = exp(delta)                     per token
                                         W = exp(sum of delta)              the whole completion
                                         W' = exp(mean of delta)            geometric mean over the completion

A weight multiplies the policy term, a filter sets it to 0; neither carries gradient. B rows, T tokens (docs/rules.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from posttrain.functional.choices import require_choice
from posttrain.functional.masks import masked
from posttrain.functional.ratios import MAX_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor

MIN_PROBABILITY = 1e-6
"""Smallest distance of a probability from 0 and 1 before a logarithm (RULE 28)."""


def sampler_log_ratio(anchor_BT: Tensor, sampling_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]` delta, clamped to ±20; 0 outside the mask and without a finite number of the sampler (`unreported`)."""
    delta_BT = (anchor_BT.detach() - sampling_BT.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return masked(delta_BT, mask_BT.bool() & sampling_BT.isfinite())


def unreported(sampling_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]` bool: trained tokens whose log-probability from the sampler is nan or infinite. Their ratio is 1."""
    return mask_BT.bool() & ~sampling_BT.isfinite()


def log_linear_anchor(logprobs_BT: Tensor, sampling_BT: Tensor, versions_BT: Tensor, version: int) -> Tensor:
    """`[B, T]`: log mu + alpha (logprobs - log mu), an anchor without a forward pass (A-3PO, arXiv:2512.06547).

        alpha = (version - 1 - v) / (version - v) in [0, 1], 0 for v >= version

    `version` is the policy version that the update produces, v the version that sampled the token. Fresh tokens are
    anchored at mu.

    >>> mu, now = torch.full((1, 4), -1.0), torch.full((1, 4), -0.4)
    >>> [round(x, 6) for x in log_linear_anchor(now, mu, torch.tensor([[3, 5, 6, 4]]), version=6)[0].tolist()]
    [-0.6, -1.0, -1.0, -0.7]
    """
    age_BT = (version - versions_BT).to(logprobs_BT.dtype)
    alpha_BT = torch.where(age_BT > 0, (age_BT - 1) / age_BT.clamp(min=1), 0.0).clamp(0, 1)
    return sampling_BT + alpha_BT * (logprobs_BT.detach() - sampling_BT)


# Levels: from delta to a ratio


def token_weight(delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]` w."""
    return delta_BT.exp()


def sequence_weight(delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, 1]` W: exact for a reward of the whole completion, with a variance that grows with its length."""
    return delta_BT.sum(dim=-1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def geometric_weight(delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, 1]` W': its size does not depend on the length. A good filter; biased as a weight."""
    return _row_mean(delta_BT, mask_BT).exp()


LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": token_weight,
    "sequence": sequence_weight,
    "geometric": geometric_weight,
}


# Actions: from a ratio and a decision to a weight


def within(score: Tensor, low: float | None, high: float | None) -> Tensor:
    """Bool: low <= score <= high; None for no bound."""
    inside = torch.ones_like(score, dtype=torch.bool)
    if low is not None:
        inside = inside & (score >= low)
    return inside if high is None else inside & (score <= high)


def truncate(weight: Tensor, low: float | None, high: float | None) -> Tensor:
    """Return the weight, clamped between low and high (truncated importance sampling)."""
    return weight if low is None and high is None else weight.clamp(low, high)


def mask(weight: Tensor, kept: Tensor) -> Tensor:
    """Return the weight where `kept` is true, 0 elsewhere (masked importance sampling; IcePop, arXiv:2510.18855)."""
    return masked(weight, kept)


def reject(weight: Tensor, kept: Tensor) -> Tensor:
    """Return 1 where `kept` is true, 0 elsewhere: a filter without a weight."""
    return kept.expand_as(weight).to(weight.dtype)


# Scores, other than the ratios, by which tokens or completions are kept


def binary_kl_score(anchor_BT: Tensor, sampling_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]`: the larger of D(mu || anchor) and D(anchor || mu) for the sampled token against all other tokens."""
    p_mu, p_anchor = probability(sampling_BT, mask_BT), probability(anchor_BT, mask_BT)
    score_BT = torch.maximum(binary_kl(p_mu, p_anchor), binary_kl(p_anchor, p_mu))
    return masked(score_BT, ~unreported(sampling_BT, mask_BT))


def probability(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """exp(logprobs), clamped to [1e-6, 1 - 1e-6]; also at padding, where a log-probability of 0 means certainty."""
    return masked(logprobs_BT.detach(), mask_BT).exp().clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)


def binary_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL of two Bernoulli distributions: p log(p / q) + (1 - p) log((1 - p) / (1 - q)), for p and q in (0, 1)."""
    return p * (p.log() - q.log()) + (1 - p) * ((-p).log1p() - (-q).log1p())


def total_variation_score(anchor_BT: Tensor, sampling_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, T]`: |p_anchor - p_mu| of the sampled token: the total variation for it against all other tokens."""
    moved_BT = (probability(anchor_BT, mask_BT) - probability(sampling_BT, mask_BT)).abs()
    return masked(moved_BT, ~unreported(sampling_BT, mask_BT))


ESTIMATES: dict[str, Callable[[Tensor], Tensor]] = {
    "k2": lambda delta_BT: delta_BT.square() / 2,
    "k3": lambda delta_BT: delta_BT.expm1() - delta_BT,
}
"""KL estimates per token, never negative; k3 = w - 1 - log w is unbiased for KL(mu || anchor)."""
OVER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": lambda x_BT, mask_BT: x_BT,
    "sum": lambda x_BT, mask_BT: masked(x_BT, mask_BT).sum(dim=-1, keepdim=True),
    "mean": lambda x_BT, mask_BT: _row_mean(x_BT, mask_BT),
    "max": lambda x_BT, mask_BT: torch.nn.functional.pad(masked(x_BT, mask_BT), (0, 1)).amax(dim=-1, keepdim=True),
}
"""Reductions to `[B, T]`, which reject single tokens, or to `[B, 1]`, which reject whole completions."""


def estimate_score(name: str, delta_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return a score such as "sum_k3" or "max_k2": an estimate per token, or its reduction over the completion."""
    require_choice("name", name, [f"{over}_{estimate}" for over in OVER for estimate in ESTIMATES])
    over, _, estimate = name.partition("_")
    return OVER[over](ESTIMATES[estimate](delta_BT), mask_BT)


def within_second_moment(delta_BT: Tensor, mask_BT: Tensor, high: float) -> Tensor:
    """`[B, T]` bool: True for the tokens that stay if the fewest tokens with the largest delta^2 are removed so that
    the mean of delta^2 over the rest is at most `high` (M2PO, arXiv:2510.01161). It couples all rows of an update.

    >>> squares = torch.tensor([[1.69, 0.25, 0.04], [0.01, 0.0025, 0.0]])
    >>> within_second_moment(squares.sqrt(), torch.ones(2, 3, dtype=torch.bool), high=0.04).tolist()
    [[False, False, True], [True, True, True]]
    """
    mask_BT = mask_BT.bool()  # an integer mask would be read as indices
    squares_BT = masked(delta_BT, mask_BT).square().double()
    ascending_N = squares_BT[mask_BT].sort().values
    means_N = ascending_N.cumsum(dim=0) / torch.arange(1, len(ascending_N) + 1, device=ascending_N.device)
    kept = int((means_N <= high).sum())  # the mean of the k smallest grows with k
    if kept == len(ascending_N):
        return mask_BT
    return mask_BT & (squares_BT < ascending_N[kept])  # equals go together: the order of rows does not matter


def normalised(weight: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the weights divided by their mean over an update, whose rows this couples. The mean of `[B, T]` weights is
    over trained tokens. The mean of `[B, 1]` weights is over completions with trained tokens, whatever their length.

    >>> mask_BT = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    >>> [round(x, 4) for x in normalised(torch.tensor([[2.0], [1.0]]), mask_BT).flatten().tolist()]
    [1.3333, 0.6667]
    """
    counted = mask_BT if weight.shape == mask_BT.shape else mask_BT.any(dim=-1, keepdim=True)
    mean = masked(weight, counted).sum() / counted.sum().clamp(min=1)
    return torch.where(mean > 0, weight / mean, weight)


def _row_mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[B, 1]`: the mean over the trained tokens of each row; 0 for a row without any."""
    return masked(x_BT, mask_BT).sum(dim=-1, keepdim=True) / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
