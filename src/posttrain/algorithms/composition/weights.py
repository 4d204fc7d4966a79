"""Trust regions of `policy_gradient` that are weights, without gradient: -weight * A * logprobs (RULE 5, 23)."""

from __future__ import annotations

from dataclasses import replace

from posttrain.algorithms.composition.ratios import Moved, Term
from posttrain.algorithms.metrics import band_metrics, mean_over
from posttrain.algorithms.topr import truncated_negatives
from posttrain.functional import trust_regions
from posttrain.types import Tensor


def as_weight(m: Moved, weight: Tensor) -> Tensor:
    """`[B, T]` -weight * A * logprobs."""
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
    """A token that the correction rejects is not part of the completion's ratio either."""
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
