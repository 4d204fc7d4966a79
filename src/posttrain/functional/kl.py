"""Estimates of KL(policy || reference) from sampled tokens (docs/rules.md). B rows, T tokens.

A good estimate of the value says nothing about the gradient obtained by differentiating it. Differentiated, k1 gives
zero in expectation, k3 the gradient of the *forward* KL, and k2 the gradient of KL(policy || reference). The
`corrected` forms keep the value of their estimator and backpropagate k2, weighted with the importance ratio if data is
off-policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from posttrain.functional.choices import require_choice
from posttrain.functional.masks import at_least_float32
from posttrain.functional.ratios import MAX_LOG_RATIO, token_ratio

if TYPE_CHECKING:
    from torch import Tensor

MAX_K3 = 10.0
"""Upper bound of the value of k3 (RULE 14)."""


def k1(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """delta = log policy - log reference: unbiased under the policy; can be negative."""
    return at_least_float32(logprobs_BT) - at_least_float32(ref_logprobs_BT)


def k2(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """delta^2 / 2: never negative; on-policy it has the gradient of KL(policy || reference)."""
    return k1(logprobs_BT, ref_logprobs_BT).square() / 2


def k3(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """exp(-delta) - 1 + delta: unbiased under the policy and never negative; capped at 10."""
    delta_BT = k1(logprobs_BT, ref_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-delta_BT).expm1() + delta_BT).clamp(max=MAX_K3)


def with_corrected_gradient(
    estimate_BT: Tensor, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, old_logprobs_BT: Tensor | None
) -> Tensor:
    """The value of `estimate_BT` with the gradient of sg[rho] * k2, which is unbiased for KL(policy || reference)."""
    carrier_BT = token_ratio(logprobs_BT, old_logprobs_BT).detach() * k2(logprobs_BT, ref_logprobs_BT)
    return estimate_BT.detach() + (carrier_BT - carrier_BT.detach())  # adds exactly 0, even if the carrier is huge


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
KL_ESTIMATOR_NAMES = (*KL_ESTIMATORS, *(f"{name}_corrected" for name in KL_ESTIMATORS))


def kl_estimate(
    estimator: str, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, old_logprobs_BT: Tensor | None = None
) -> Tensor:
    """`[B, T]`: the named estimator. A name such as "k3_corrected" keeps the value and corrects the gradient.

    >>> import torch
    >>> round(kl_estimate("k3", torch.tensor(-0.5), torch.tensor(-0.6)).item(), 6)
    0.004837
    """
    require_choice("estimator", estimator, KL_ESTIMATOR_NAMES)
    name, _, corrected = estimator.partition("_")
    estimate_BT = KL_ESTIMATORS[name](logprobs_BT, ref_logprobs_BT)
    if corrected:
        return with_corrected_gradient(estimate_BT, logprobs_BT, ref_logprobs_BT, old_logprobs_BT)
    return estimate_BT


def adaptive_kl_coef(coef: float, kl: float, target: float, sequences: int, *, horizon: int = 10_000) -> float:
    """The next KL coefficient: coef * (1 + e * sequences / horizon), e = clip(kl / target - 1, -0.2, 0.2).

    From arXiv:1909.08593, where kl is the mean over sequences of the *sum* over each sequence; targets in other units
    do not carry over. For any number of sequences, one batch lowers the coefficient by at most a factor of 2.

    >>> round(adaptive_kl_coef(0.2, kl=9.0, target=6.0, sequences=512), 6)
    0.202048
    """
    error = min(0.2, max(-0.2, kl / target - 1))
    return coef * max(0.5, 1 + error * sequences / horizon)
