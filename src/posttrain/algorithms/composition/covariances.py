"""Trust regions of `policy_gradient` that choose tokens among all those of an update (RULE 24)."""

from __future__ import annotations

from posttrain.algorithms.composition.ratios import Moved, Term
from posttrain.algorithms.composition.surrogates import clip
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.shared import draw_for
from posttrain.functional import trust_regions
from posttrain.functional.masks import masked
from posttrain.functional.ratios import log_ratio, stopped_by_clip
from posttrain.types import Metrics, Tensor


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
