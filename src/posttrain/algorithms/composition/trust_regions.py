"""Ratios and trust regions of `policy_gradient`: what keeps an update near the policy it starts from (RULE 5, 16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from posttrain.algorithms.composition.options import Option, Values
from posttrain.algorithms.metrics import as_ratio, band_metrics, clip_metrics, mean_over
from posttrain.algorithms.shared import advantages_of, draw_for, per_completion
from posttrain.algorithms.topr import truncated_negatives
from posttrain.functional import trust_regions
from posttrain.functional.masks import masked
from posttrain.functional.ratios import (
    clipped_surrogate,
    log_ratio,
    sequence_log_ratio,
    sequence_product_ratio,
    sequence_ratio,
    sequence_token_ratio,
    stopped_by_clip,
    token_ratio,
)
from posttrain.types import Batch, Metrics, Outputs, Tensor


@dataclass(frozen=True, kw_only=True)
class Ratio(Option):
    ratio: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None
    """(logprobs, old_logprobs, mask) -> `[B, T]`, or `[B, 1]` where there is one per completion."""
    per_completion: bool = False


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a trust region looks at."""

    values: Values
    outputs: Outputs
    batch: Batch
    ratio_of: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None

    @property
    def logprobs_BT(self) -> Tensor:
        return self.outputs.logprobs_BT

    @property
    def mask_BT(self) -> Tensor:
        return self.batch.completion_mask_BT

    @property
    def ratio(self) -> Tensor:
        assert self.ratio_of is not None, "a trust region that reads a ratio is refused without one"
        return self.ratio_of(self.logprobs_BT, self.batch.old_logprobs_BT, self.mask_BT)

    @property
    def advantages_BT(self) -> Tensor:
        return advantages_of(self.batch)

    @property
    def advantages_B1(self) -> Tensor:
        return per_completion(self.advantages_BT, self.mask_BT)

    def as_ratio(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and mask in the shape of the ratio."""
        return as_ratio(ratio, self.batch)


@dataclass(frozen=True, kw_only=True)
class Term:
    """What a trust region makes of the policy's part of the loss, each `[B, T]` or `[B, 1]`."""

    policy: Tensor
    """Weighted by an off-policy correction."""
    penalty: Tensor | float = 0.0
    """Not weighted."""
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrustRegion(Option):
    term: Callable[[Moved], Term]
    ratios: tuple[str, ...]
    """The ratios that it goes with."""
    select: Callable[[Moved], Tensor] | None = None
    """`[B, T]` bool: tokens chosen among all those of the update."""
    auto_correction: str = "tis"


RATIOS = {
    "none": Ratio(ratio=None),
    "token": Ratio(ratio=lambda logprobs_BT, old_BT, mask_BT: token_ratio(logprobs_BT, old_BT)),
    "sequence": Ratio(ratio=sequence_ratio, per_completion=True),
    "sequence_product": Ratio(ratio=sequence_product_ratio, per_completion=True),
    "sequence_token": Ratio(ratio=sequence_token_ratio),
}
DIFFERENTIATED = ("token", "sequence", "sequence_product", "sequence_token")
WEIGHTS = ("token", "sequence", "sequence_product")


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


CLIP = {"clip_low": 0.2, "clip_high": 0.2}
KERNEL = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
DIVERGENCE = {"divergence": "tv", "divergence_low": 0.15, "divergence_high": 0.15, "max_ratio": 20.0}
COVARIANCE = {"cov_low": 1.0, "cov_high": 5.0, "cov_share": 2e-4, "seed": 0, "dual_clip": None}
TRUST_REGIONS = {
    "none": TrustRegion(term=nothing, ratios=("none", *DIFFERENTIATED)),
    "clip": TrustRegion(term=clip, ratios=DIFFERENTIATED, reads=CLIP | {"dual_clip": None}),
    "weight_clip": TrustRegion(
        term=weight_clip,
        ratios=WEIGHTS,
        reads={"max_ratio": 5.0, "clip_low": None, "clip_high": None},
        auto_correction="bypass",
    ),
    "soft_gate": TrustRegion(term=soft_gate, ratios=DIFFERENTIATED, reads={"tau_pos": 1.0, "tau_neg": 1.05}),
    "kernel": TrustRegion(term=kernel, ratios=WEIGHTS, reads=KERNEL, auto_correction="bypass"),
    "divergence_mask": TrustRegion(term=divergence_mask, ratios=("token",), reads=DIVERGENCE, auto_correction="bypass"),
    "clip_cov": TrustRegion(
        term=clip_cov,
        select=select_clip_cov,
        ratios=("token",),
        reads=CLIP | COVARIANCE,
        needs=frozenset({"current"}),
    ),
    "kl_cov": TrustRegion(
        term=kl_cov,
        select=select_kl_cov,
        ratios=("token",),
        reads={"cov_share": 2e-3, "penalty": 1.0},
        needs=frozenset({"current"}),
    ),
    "log_clip": TrustRegion(term=log_clip, ratios=("sequence",), reads={"clip_low": 0.4, "clip_high": 0.4}),
    "truncated_negatives": TrustRegion(term=negatives, ratios=("sequence_product",), auto_correction="bypass"),
    "squared_log_ratio": TrustRegion(
        term=squared_log_ratio,
        ratios=("none",),
        reads={"tau": 0.1},
        needs=frozenset({"old"}),
        auto_correction="bypass",
    ),
    "token_squared_log_ratio": TrustRegion(
        term=token_squared_log_ratio,
        ratios=("none",),
        reads={"tau": 0.1},
        needs=frozenset({"old"}),
        auto_correction="bypass",
    ),
    "regression": TrustRegion(
        term=regression,
        ratios=("none",),
        reads={"tau": 0.1},
        needs=frozenset({"old"}),
        auto_correction="bypass",
    ),
}
