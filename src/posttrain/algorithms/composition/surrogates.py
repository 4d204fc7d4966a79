"""The policy terms of `policy_gradient`, one for each trust region (RULE 5, 16)."""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.composition.ratios import Moved, Term
from posttrain.algorithms.metrics import band_metrics, clip_metrics, mean_over
from posttrain.algorithms.shared import draw_for
from posttrain.algorithms.topr import truncated_negatives
from posttrain.functional import trust_regions
from posttrain.functional.masks import masked
from posttrain.functional.ratios import (
    clipped_surrogate,
    log_ratio,
    sequence_log_ratio,
    stopped_by_clip,
)
from posttrain.types import Metrics, Tensor


def nothing(m: Moved) -> Term:
    if m.ratio_of is None:
        return Term(policy=-m.advantages_BT * m.logprobs_BT)
    advantages, _ = m.as_ratio(m.ratio)
    return Term(policy=-advantages * m.ratio)


def clip(m: Moved) -> Term:
    ratio, (advantages, mask) = m.ratio, m.as_ratio(m.ratio)
    bounds = (m.values["clip_low"], m.values["clip_high"], m.values["dual_clip"])
    loss = clipped_surrogate(ratio, advantages, *bounds)
    return Term(policy=loss, metrics=clip_metrics(ratio, advantages, mask, *bounds))


def soft_gate(m: Moved) -> Term:
    ratio, (advantages, mask) = m.ratio, m.as_ratio(m.ratio)
    gate = trust_regions.soft_gate(ratio, advantages, m.values["tau_pos"], m.values["tau_neg"])
    return Term(policy=-gate * advantages, metrics={"policy/gate_mean": mean_over(gate, mask)})


def log_clip(m: Moved) -> Term:
    low, high = m.values["clip_low"], m.values["clip_high"]
    d_BT = log_ratio(m.logprobs_BT, m.batch.old_logprobs_BT)
    z_BT = masked(trust_regions.log_clip(d_BT, m.advantages_B1, low, high), m.mask_BT)
    mean_B1 = z_BT.sum(dim=-1, keepdim=True) / m.mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
    metrics = band_metrics(d_BT < -low, d_BT > high, m.advantages_B1, m.mask_BT)
    return Term(policy=-m.advantages_B1 * mean_B1.exp(), metrics=metrics)


def squared_log_ratio(m: Moved) -> Term:
    """Penalise the squared log-ratio of the completion, split equally over its tokens."""
    square_B1 = sequence_log_ratio(m.logprobs_BT, m.batch.old_logprobs_BT, m.mask_BT).square()
    lengths_B1, nonempty_B1 = m.mask_BT.sum(dim=-1, keepdim=True), m.mask_BT.any(dim=-1, keepdim=True)
    pull_B1 = m.values["tau"] / 2 * square_B1 / lengths_B1.clamp(min=1)
    metrics: Metrics = {"policy/squared_log_ratio": mean_over(square_B1, nonempty_B1)}
    return Term(policy=-m.advantages_BT * m.logprobs_BT, penalty=pull_B1, metrics=metrics)


def token_squared_log_ratio(m: Moved) -> Term:
    square_BT = log_ratio(m.logprobs_BT, m.batch.old_logprobs_BT).square()
    metrics: Metrics = {"policy/squared_log_ratio": mean_over(square_BT, m.mask_BT)}
    return Term(policy=-m.advantages_BT * m.logprobs_BT, penalty=m.values["tau"] / 2 * square_BT, metrics=metrics)


def regression(m: Moved) -> Term:
    log_ratio_B1 = sequence_log_ratio(m.logprobs_BT, m.batch.old_logprobs_BT, m.mask_BT)
    metrics: Metrics = {
        "policy/squared_log_ratio": mean_over(log_ratio_B1.square(), m.mask_BT.any(dim=-1, keepdim=True))
    }
    return Term(policy=(m.advantages_B1 - m.values["tau"] * log_ratio_B1).square(), metrics=metrics)


def as_weight(m: Moved, weight: Tensor) -> Tensor:
    """`[B, T]`: -weight * A * logprobs."""
    return -weight * m.advantages_BT * m.logprobs_BT


def weight_clip(m: Moved) -> Term:
    low, high, most = m.values["clip_low"], m.values["clip_high"], m.values["max_ratio"]
    relative = (low, high) != (None, None)
    bounds = (None if low is None else 1 - low, (None if high is None else 1 + high) if relative else most)
    ratio, (_, mask) = m.ratio.detach(), m.as_ratio(m.ratio)
    weight = trust_regions.weight_clip(ratio, *bounds)
    clipped = mean_over((weight != ratio).float(), mask)
    return Term(policy=as_weight(m, weight), metrics={"policy/weight_clip_fraction": clipped})


def kernel(m: Moved) -> Term:
    """Weight by the kernel of the completion's ratio, which leaves out tokens that the correction rejects."""
    batch = m.batch
    if batch.correction_BT is not None:
        batch = replace(batch, completion_mask_BT=m.mask_BT & (batch.correction_BT != 0))
    kept = replace(m, batch=batch)
    shape = {name: m.values[name] for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")}
    weight_BT = trust_regions.kernel(kept.ratio, m.advantages_BT, **shape)
    return Term(policy=as_weight(m, weight_BT), metrics={"policy/kernel_mean": mean_over(weight_BT, m.mask_BT)})


def divergence_mask(m: Moved) -> Term:
    moved = (m.logprobs_BT, m.batch.old_logprobs_BT)
    bounds = (m.values["divergence_low"], m.values["divergence_high"], m.values["divergence"])
    kept_BT = trust_regions.divergence_mask(*moved, m.advantages_BT, *bounds)
    weight_BT = trust_regions.weight_clip(m.ratio, None, m.values["max_ratio"]) * kept_BT
    metrics = band_metrics(*trust_regions.moved_too_far(*moved, *bounds), m.advantages_BT, m.mask_BT)
    return Term(policy=as_weight(m, weight_BT), metrics=metrics)


def negatives(m: Moved) -> Term:
    weight_B1 = truncated_negatives(m.outputs, m.batch)
    mean = mean_over(weight_B1, m.mask_BT.any(dim=-1, keepdim=True))
    return Term(policy=as_weight(m, weight_B1), metrics={"policy/weight_mean": mean})


def select_clip_cov(m: Moved) -> Tensor:
    p = m.values
    return trust_regions.clip_cov(
        trust_regions.covariance(m.logprobs_BT, m.advantages_BT, m.mask_BT),
        ~stopped_by_clip(m.ratio, m.advantages_BT, p["clip_low"], p["clip_high"]),
        m.mask_BT,
        cov_low=p["cov_low"],
        cov_high=p["cov_high"],
        share=p["cov_share"],
        draw_BT=draw_for(m.batch, p["seed"]),
    )


def select_kl_cov(m: Moved) -> Tensor:
    covariance_BT = trust_regions.covariance(m.logprobs_BT, m.advantages_BT, m.mask_BT)
    return trust_regions.kl_cov(covariance_BT, m.mask_BT, m.values["cov_share"], draw_for(m.batch, seed=0))


def clip_cov(m: Moved) -> Term:
    clipped = clip(m)
    assert m.batch.selected_BT is not None
    chosen = {"policy/selected_fraction": mean_over(m.batch.selected_BT.float(), m.mask_BT)}
    return Term(policy=masked(clipped.policy, ~m.batch.selected_BT), metrics=clipped.metrics | chosen)


def kl_cov(m: Moved) -> Term:
    assert m.batch.selected_BT is not None
    moved_BT = log_ratio(m.logprobs_BT, m.batch.old_logprobs_BT).abs()
    chosen: Metrics = {"policy/selected_fraction": mean_over(m.batch.selected_BT.float(), m.mask_BT)}
    held_BT = m.values["penalty"] * masked(moved_BT, m.batch.selected_BT)
    return Term(policy=-m.advantages_BT * m.ratio, penalty=held_BT, metrics=chosen)
