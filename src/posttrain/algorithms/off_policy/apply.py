"""How a `Correction` acts on a batch: where the ratio is anchored, what each token weighs, which ones are rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.off_policy.correction import Correction, kept
from posttrain.errors import ConfigError
from posttrain.functional.corrections import (
    LEVELS,
    geometric_weight,
    log_linear_anchor,
    mask,
    normalised,
    reject,
    sampler_log_ratio,
    sequence_weight,
    truncate,
    unreported,
    within,
)
from posttrain.functional.masks import masked, without_gradient
from posttrain.types import Batch, EffectiveShare, Max, Metrics, Outputs, Tensor


class Anchor(NamedTuple):
    """Two `[B, T]` log-probabilities, constants for the gradient."""

    center_BT: Tensor | None
    """Where the ratio of the algorithm is centred; None: at the policy itself."""
    corrected_BT: Tensor
    """What the weight leads to: it is exp(corrected - sampler)."""


def _at_trainer(now_BT: Tensor, batch: Batch) -> Anchor:
    return Anchor(batch.old_logprobs_BT, trainer_logprobs(now_BT, batch))


def _at_sampler(now_BT: Tensor, batch: Batch) -> Anchor:
    """A token that the sampler gave no number for has ratio 1."""
    sampling_BT = sampling_of(batch)
    return Anchor(torch.where(sampling_BT.isfinite(), sampling_BT, now_BT), now_BT)


def _between(now_BT: Tensor, batch: Batch) -> Anchor:
    if batch.versions_BT is None or batch.version is None:
        raise ConfigError(
            given="correction: anchor = loglinear, but the batch does not say which policy version sampled which token",
            allowed="versions_BT and version, or anchor = trainer",
            fix="Pass Experience.from_rewards(..., versions_BT=..., version=...), or use correction = decoupled.",
        )
    sampling_BT, _ = _at_sampler(now_BT, batch)
    assert sampling_BT is not None
    anchor_BT = log_linear_anchor(now_BT, sampling_BT, batch.versions_BT, batch.version + 1)
    return Anchor(anchor_BT, anchor_BT)


ANCHORS: dict[str, Callable[[Tensor, Batch], Anchor]] = {
    "trainer": _at_trainer,
    "sampler": _at_sampler,
    "loglinear": _between,
}


def trainer_logprobs(now_BT: Tensor, batch: Batch) -> Tensor:
    """The trainer's log-probabilities before the update; None there means the policy's own (RULE 6)."""
    return now_BT if batch.old_logprobs_BT is None else batch.old_logprobs_BT.detach()


def sampling_of(batch: Batch) -> Tensor:
    if batch.sampling_logprobs_BT is None:
        raise ConfigError(
            given="a correction, but there are no log-probabilities of the sampler",
            allowed="correction = none, or sampling_logprobs_BT",
            fix="Pass sampling_logprobs_BT, or set correction = none.",
        )
    return batch.sampling_logprobs_BT.detach()


@without_gradient
def couple_rows(correction: Correction | None, batch: Batch) -> Batch:
    """The weights of a whole update at once, where they depend on each other; rejected tokens may leave the mask."""
    if correction is None or not correction.couples_rows:
        return batch
    before_BT = getattr(batch, correction.looks_at)
    if before_BT is None:
        return batch  # nobody has looked at the policy yet: the loss takes its rows for the whole update
    return replace(_with_weights(correction, before_BT.detach(), batch), coupled=True)


def anchor_and_weigh(correction: Correction | None, outputs: Outputs, batch: Batch) -> Batch:
    """The batch with the ratio's anchor and, unless `couple_rows` has done it, with the weights."""
    if correction is None:
        return batch
    now_BT = outputs.logprobs_BT.detach()
    if correction.weighs and batch.correction_BT is None:
        batch = _with_weights(correction, now_BT, batch)
    return replace(batch, old_logprobs_BT=ANCHORS[correction.anchor](now_BT, batch).center_BT)


def _with_weights(correction: Correction, now_BT: Tensor, batch: Batch) -> Batch:
    """`correction_BT`: 0 where rejected, 1 outside the mask."""
    mask_BT, sampling_BT = batch.completion_mask_BT, sampling_of(batch)
    corrected_BT = ANCHORS[correction.anchor](now_BT, batch).corrected_BT
    delta_BT = sampler_log_ratio(corrected_BT, sampling_BT, mask_BT)
    weight = LEVELS[correction.level](delta_BT, mask_BT)
    bounded = partial(kept, delta_BT=delta_BT, corrected_BT=corrected_BT, sampling_BT=sampling_BT, mask_BT=mask_BT)
    if correction.action in ("mask", "reject"):
        weight = {"mask": mask, "reject": reject}[correction.action](weight, bounded(correction, weight))
    elif correction.action != "full":
        weight = (
            truncate(weight, correction.low, correction.high) if correction.action == "truncate" else 1 + 0 * weight
        )
    if correction.normalize:
        weight = normalised(weight, mask_BT)
    weight_BT = weight.expand(mask_BT.shape)
    for rule in correction.reject:
        weight_BT = mask(weight_BT, bounded(rule, weight))
    weight_BT = torch.where(mask_BT, weight_BT, 1.0)
    if correction.rejected_in_denominator:
        return replace(batch, correction_BT=weight_BT)
    return replace(batch, correction_BT=weight_BT, completion_mask_BT=mask_BT & (weight_BT != 0))


MISMATCH_METRICS = {
    "mismatch/kl": "mean of -delta over the trained tokens, delta = log trainer - log sampler within +-20, trainer "
    "being old_logprobs, or logprobs where there are none: estimates KL(sampler || trainer), can be negative",
    "mismatch/k3": "mean of exp(delta) - 1 - delta: estimates the same, never negative",
    "mismatch/abs_mean": "mean of |delta|",
    "mismatch/abs_max": "largest |delta| of the step",
    "mismatch/chi2_token": "mean of w^2 - 1 over the trained tokens, w = exp(delta)",
    "mismatch/chi2_seq": "mean of W^2 - 1 over the completions, W = exp(sum of delta)",
    "mismatch/ppl_ratio": "mean over the completions of exp(mean of -delta)",
    "mismatch/unreported_fraction": "share of trained tokens for which the sampler gave no finite log-probability: "
    "they count as delta = 0",
}
WEIGHT_METRICS = {
    "is/ess_fraction": "effective sample size (sum w)^2 / (n sum w^2) of the weights that the loss was multiplied by, "
    "over the n trained tokens of the step, or over its completions where each has one weight",
    "is/truncated_fraction": "share of them that were outside of low and high, and held there",
    "is/masked_fraction": "share of trained tokens with weight 0. Without a place in the denominator, of the "
    "completions that still train something",
}
CORRECTION_METRICS = MISMATCH_METRICS | WEIGHT_METRICS


@without_gradient
def correction_metrics(correction: Correction | None, outputs: Outputs, batch: Batch) -> Metrics:
    """Of the rows that train something, rejected tokens included; nothing without the sampler's log-probabilities."""
    mask_BT = batch.completion_mask_BT
    if batch.correction_BT is not None:
        mask_BT = mask_BT | (batch.correction_BT == 0)
    if batch.sampling_logprobs_BT is None or not mask_BT.any():
        return {}
    now_BT, at_trainer = outputs.logprobs_BT.detach(), correction is None or correction.anchor == "trainer"
    before_BT = trainer_logprobs(now_BT, batch) if at_trainer else now_BT
    metrics = mismatch_metrics(before_BT, batch.sampling_logprobs_BT, mask_BT)
    if correction is None or batch.correction_BT is None:
        return metrics
    corrected_BT = before_BT if correction.anchor != "loglinear" else trainer_logprobs(now_BT, batch)
    delta_BT = sampler_log_ratio(corrected_BT, batch.sampling_logprobs_BT, mask_BT)
    return metrics | weight_metrics(correction, delta_BT, batch.correction_BT, mask_BT)


def mismatch_metrics(before_BT: Tensor, sampling_BT: Tensor, mask_BT: Tensor) -> Metrics:
    """`before_BT` is the trainer's view of the tokens, `sampling_BT` that of the sampler."""
    delta_BT, nonempty_B1 = sampler_log_ratio(before_BT, sampling_BT, mask_BT), mask_BT.any(dim=-1, keepdim=True)
    return {
        "mismatch/kl": mean_over(-delta_BT, mask_BT),
        "mismatch/k3": mean_over(delta_BT.exp() - 1 - delta_BT, mask_BT),
        "mismatch/abs_mean": mean_over(delta_BT.abs(), mask_BT),
        "mismatch/abs_max": Max(float(delta_BT.abs().max())),
        "mismatch/chi2_token": mean_over(delta_BT.exp().square() - 1, mask_BT),
        "mismatch/chi2_seq": mean_over(sequence_weight(delta_BT, mask_BT).square() - 1, nonempty_B1),
        "mismatch/ppl_ratio": mean_over(geometric_weight(-delta_BT, mask_BT), nonempty_B1),
        "mismatch/unreported_fraction": mean_over(unreported(sampling_BT, mask_BT).float(), mask_BT),
    }


def weight_metrics(correction: Correction, delta_BT: Tensor, weight_BT: Tensor, mask_BT: Tensor) -> Metrics:
    """Of the weights that were applied; one per token, or one per completion."""
    raw = LEVELS[correction.level](delta_BT, mask_BT)
    applied, counted = weight_BT, mask_BT
    if raw.shape[-1] == 1 and mask_BT.shape[-1] != 1:
        applied, counted = masked(weight_BT, mask_BT).amax(dim=-1, keepdim=True), mask_BT.any(dim=-1, keepdim=True)
    w = masked(applied, counted).double()
    outside = ~within(raw, correction.low, correction.high)
    held = outside.float() if correction.action == "truncate" else torch.zeros_like(raw)
    return {
        "is/ess_fraction": EffectiveShare(float(counted.sum()), float(w.sum()), float(w.square().sum())),
        "is/truncated_fraction": mean_over(held, counted),
        "is/masked_fraction": mean_over((weight_BT == 0).float(), mask_BT),
    }
