"""The metrics that algorithms log, with their formulas. All can be reduced over micro-batches (RULE 52)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from posttrain.algorithms.shared import advantages_of, per_completion
from posttrain.functional.kl import k3
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.ratios import log_ratio
from posttrain.functional.readings import nothing_in, number, picked
from posttrain.types import Batch, IfAny, Max, Mean, Metrics, Min, Outputs, Spread, Tensor


def mean_over(x: Tensor, mask: Tensor) -> Mean:
    """Return the mean of `x` over the mask, as a metric that can be reduced over micro-batches."""
    return Mean(number(masked(x.detach(), mask).sum()), number(mask.sum()))


def spread_over(x: Tensor, mask: Tensor) -> Spread:
    """Return the standard deviation of `x` over the mask, as a metric that can be reduced over micro-batches."""
    x = masked(x.detach().double(), mask)  # double: the reduction subtracts sums of squares
    return Spread(number(mask.sum()), number(x.sum()), number(x.square().sum()))


def if_any(mask: Tensor, measure: Callable[[], Metrics]) -> Metrics:
    """Return the metrics of `measure`, or none if the mask is empty. On a GPU only the whole step tells if it is."""
    if nothing_in(mask):
        return {}
    if mask.device.type == "cpu":
        return measure()
    return {name: IfAny(metric, number(mask.sum())) for name, metric in measure().items()}


def clip_formulas(share_of: str = "trained tokens", ratio: str = "rho") -> dict[str, str]:
    """Return the formulas of `clip_metrics`, for the unit that is clipped and the name of its ratio."""
    return band_formulas(share_of, f"{ratio} < 1 - clip_low", f"{ratio} > 1 + clip_high")


def band_formulas(share_of: str, low: str, high: str) -> dict[str, str]:
    """Return the formulas of `band_metrics`, for the unit and the conditions that count as too low and too high."""
    return {
        "clip_ratio/low_mean": f"share of {share_of} with {low} and A < 0: clipped, no gradient",
        "clip_ratio/high_mean": f"share of {share_of} with {high} and A > 0: clipped, no gradient",
        "clip_ratio/region_mean": "clip_ratio/low_mean + clip_ratio/high_mean",
        "policy/out_of_band": f"share of {share_of} with {low} or {high}, for any A",
    }


DUAL_CLIP_METRICS = {
    "policy/dual_clip_fraction": "share of trained tokens with rho > dual_clip and A < 0: clipped, no gradient"
}


@without_gradient
def clip_metrics(
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Metrics:
    """Return shares of clipped elements: tokens, or whole completions if there is one ratio per completion."""
    metrics = band_metrics(ratio < 1 - clip_low, ratio > 1 + clip_high, advantages, mask)
    if dual_clip is not None:
        dual = (ratio > dual_clip) & (advantages < 0)
        metrics["policy/dual_clip_fraction"] = mean_over(dual.float(), mask)
    return metrics


@without_gradient
def band_metrics(low: Tensor, high: Tensor, advantages: Tensor, mask: Tensor) -> Metrics:
    """Return the share of elements outside a band, and of those that left it in the direction of their advantage and
    therefore have no gradient."""
    stopped_low, stopped_high = low & (advantages < 0), high & (advantages > 0)
    return {
        "clip_ratio/low_mean": mean_over(stopped_low.float(), mask),
        "clip_ratio/high_mean": mean_over(stopped_high.float(), mask),
        "clip_ratio/region_mean": mean_over((stopped_low | stopped_high).float(), mask),
        "policy/out_of_band": mean_over((low | high).float(), mask),
    }


RATIO_METRICS = {
    "policy/ratio_mean": "mean of rho = exp(d), d = logprobs - old_logprobs, over the trained tokens",
    "policy/ratio_min": "smallest rho of the step",
    "policy/ratio_max": "largest rho of the step",
    "policy/ratio_std": "standard deviation of rho over the trained tokens of the step",
    "policy/approx_kl_k1": "mean of -d: estimates KL(old || policy) per token, can be negative",
    "policy/approx_kl_k2": "mean of d^2 / 2: estimates the same, never negative, biased",
    "policy/approx_kl_k3": "mean of exp(d) - 1 - d: estimates the same, never negative, unbiased",
}


@without_gradient
def ratio_metrics(log_ratio_BT: Tensor, mask_BT: Tensor) -> Metrics:
    """Return metrics of how far the policy has moved since it sampled; none if these rows train nothing."""
    if nothing_in(mask_BT):
        return {}
    d_BT = log_ratio_BT.detach()
    ratio_BT = d_BT.exp()
    return {
        "policy/ratio_mean": mean_over(ratio_BT, mask_BT),
        "policy/ratio_min": Min(number(picked(ratio_BT, mask_BT, otherwise=torch.inf).min())),
        "policy/ratio_max": Max(number(picked(ratio_BT, mask_BT, otherwise=-torch.inf).max())),
        "policy/ratio_std": spread_over(ratio_BT, mask_BT),
        "policy/approx_kl_k1": mean_over(-d_BT, mask_BT),
        "policy/approx_kl_k2": mean_over(d_BT.square() / 2, mask_BT),
        "policy/approx_kl_k3": mean_over(d_BT.expm1() - d_BT, mask_BT),
    }


KL_METRICS = {
    "kl": "mean over the trained tokens of k3 = exp(-delta) - 1 + delta (at most 10), delta = logprobs - ref_logprobs"
}
ENTROPY_METRICS = {
    "entropy": "mean over the trained tokens of -sum_v p_v log p_v, in nats, at the sampling temperature"
}
SHARED_METRICS = RATIO_METRICS | KL_METRICS | ENTROPY_METRICS


def common_metrics(outputs: Outputs, batch: Batch) -> Metrics:
    """Return the KL to the reference and the entropy, both per token, if their inputs are present."""
    metrics: Metrics = {}
    if batch.ref_logprobs_BT is not None:
        metrics["kl"] = mean_over(k3(outputs.logprobs_BT.detach(), batch.ref_logprobs_BT), batch.completion_mask_BT)
    if outputs.entropy_BT is not None:
        metrics["entropy"] = mean_over(outputs.entropy_BT, batch.completion_mask_BT)
    return metrics


def ratio_and_clip_metrics(outputs: Outputs, batch: Batch, clipped: Tensor | None, algorithm: Any) -> Metrics:
    """Return metrics of the ratio per token, and of `clipped`, the ratio that clip_low, clip_high and dual_clip
    bound."""
    found: Metrics = {}
    low, high, dual = (getattr(algorithm, name, None) for name in ("clip_low", "clip_high", "dual_clip"))
    if clipped is not None and low is not None and high is not None:
        found |= clip_metrics(clipped.detach(), *as_ratio(clipped, batch), low, high, dual)
    log_ratio_BT = log_ratio(outputs.logprobs_BT.detach(), batch.old_logprobs_BT)
    return found | ratio_metrics(log_ratio_BT, batch.completion_mask_BT)


def as_ratio(ratio: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return advantages and mask in the shape of a ratio: per token, or `[B, 1]` per completion."""
    advantages_BT, mask_BT = advantages_of(batch), batch.completion_mask_BT
    if ratio.shape == mask_BT.shape:
        return advantages_BT, mask_BT
    return per_completion(advantages_BT, mask_BT), mask_BT.any(dim=-1, keepdim=True)
