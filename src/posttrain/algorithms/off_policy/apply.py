"""The effect of a `Correction` on a batch: the anchor of the ratio, the weights of the tokens, the rejected tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.rules import AGAINST_ALL_OTHERS, Rule
from posttrain.errors import ConfigError
from posttrain.functional.corrections import (
    LEVELS,
    OVER,
    estimate_score,
    log_linear_anchor,
    mask,
    normalised,
    reject,
    sampler_log_ratio,
    truncate,
    within,
    within_second_moment,
)
from posttrain.functional.masks import without_gradient
from posttrain.types import Batch, Outputs, Tensor


class Anchor(NamedTuple):
    """Two `[B, T]` log-probabilities that carry no gradient."""

    center_BT: Tensor | None
    """The denominator of the algorithm's ratio; None: the policy itself."""
    corrected_BT: Tensor
    """The corrected log-probabilities: the weight is exp(corrected - sampler)."""


def _at_trainer(now_BT: Tensor, batch: Batch) -> Anchor:
    return Anchor(batch.old_logprobs_BT, trainer_logprobs(now_BT, batch))


def _at_sampler(now_BT: Tensor, batch: Batch) -> Anchor:
    """Return the sampler's log-probabilities as the anchor. A token without one has ratio 1."""
    sampling_BT = sampling_of(batch)
    return Anchor(torch.where(sampling_BT.isfinite(), sampling_BT, now_BT), now_BT)


def _between(now_BT: Tensor, batch: Batch) -> Anchor:
    if batch.versions_BT is None or batch.version is None:
        raise ConfigError(
            given="correction: anchor = loglinear, but the batch does not say which policy version sampled each token",
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
    """Return the trainer's log-probabilities before the update, or the policy's own if the batch has none (RULE 6)."""
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
    """Compute the weights over the whole update if they depend on each other. Rejected tokens may leave the mask."""
    if correction is None or not correction.couples_rows:
        return batch
    before_BT = getattr(batch, correction.looks_at)
    if before_BT is None:
        return batch  # no log-probabilities of the policy yet: the loss treats its rows as the whole update
    return replace(_with_weights(correction, before_BT.detach(), batch), coupled=True)


def anchor_and_weigh(correction: Correction | None, outputs: Outputs, batch: Batch) -> Batch:
    """Return the batch with the anchor of the ratio, and with the weights unless `couple_rows` has computed them."""
    if correction is None:
        return batch
    now_BT = outputs.logprobs_BT.detach()
    if correction.weighs and batch.correction_BT is None:
        batch = _with_weights(correction, now_BT, batch)
    return replace(batch, old_logprobs_BT=ANCHORS[correction.anchor](now_BT, batch).center_BT)


def kept(
    rule: Correction | Rule,
    weight: Tensor,
    delta_BT: Tensor,
    corrected_BT: Tensor,
    sampling_BT: Tensor,
    mask_BT: Tensor,
) -> Tensor:
    """Return a bool in the shape of the score: true for the tokens or completions that are kept."""
    if rule.score == "second_moment":
        assert rule.high is not None
        return within_second_moment(delta_BT, mask_BT, rule.high)
    if rule.score in LEVELS:
        score = LEVELS[rule.score](delta_BT, mask_BT)
    elif (of_token := rule.score.removeprefix("mean_")) in AGAINST_ALL_OTHERS:
        score = AGAINST_ALL_OTHERS[of_token](corrected_BT, sampling_BT, mask_BT)
        score = score if of_token == rule.score else OVER["mean"](score, mask_BT)
    else:
        score = weight if rule.score == "weight" else estimate_score(rule.score, delta_BT, mask_BT)
    return within(score, rule.low, rule.high)


def _with_weights(correction: Correction, now_BT: Tensor, batch: Batch) -> Batch:
    """Return the batch with `correction_BT`: the weights, 0 for rejected tokens and 1 outside the mask."""
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
