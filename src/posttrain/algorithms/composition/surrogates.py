"""Trust regions of `policy_gradient` whose ratio is differentiated, or that have none."""

from __future__ import annotations

from posttrain.algorithms.composition.ratios import Moved, Term
from posttrain.algorithms.metrics import band_metrics, clip_metrics, mean_over
from posttrain.functional import trust_regions
from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, log_ratio, sequence_log_ratio
from posttrain.types import Metrics


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
    """The square belongs to the completion: each of its tokens carries an equal part."""
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
