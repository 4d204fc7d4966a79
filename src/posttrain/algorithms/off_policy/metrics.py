"""The metrics of a correction: mismatch between sampler and trainer, weights, rejected tokens."""

from __future__ import annotations

import torch

from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.off_policy.apply import trainer_logprobs
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.functional.corrections import (
    LEVELS,
    geometric_weight,
    sampler_log_ratio,
    sequence_weight,
    unreported,
    within,
)
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.readings import nothing_in, number
from posttrain.types import Batch, EffectiveShare, Max, Metrics, Outputs, Tensor

MISMATCH_METRICS = {
    "mismatch/kl": "mean of -delta over the trained tokens, delta = log trainer - log sampler within +-20; trainer "
    "is old_logprobs, or logprobs if there are none. Estimates KL(sampler || trainer), can be negative",
    "mismatch/k3": "mean of exp(delta) - 1 - delta: estimates the same, never negative",
    "mismatch/abs_mean": "mean of |delta|",
    "mismatch/abs_max": "largest |delta| of the step",
    "mismatch/chi2_token": "mean of w^2 - 1 over the trained tokens, w = exp(delta)",
    "mismatch/chi2_seq": "mean of W^2 - 1 over the completions, W = exp(sum of delta)",
    "mismatch/ppl_ratio": "mean over the completions of exp(mean of -delta)",
    "mismatch/unreported_fraction": "share of trained tokens for which the sampler reported no finite log-probability; "
    "they count as delta = 0",
}
WEIGHT_METRICS = {
    "is/ess_fraction": "effective sample size (sum w)^2 / (n sum w^2) of the weights that the loss was multiplied by, "
    "over the n trained tokens of the step, or over its completions if each has one weight",
    "is/truncated_fraction": "share of these tokens or completions whose weight was outside low and high and was "
    "truncated to a bound",
    "is/masked_fraction": "share of trained tokens with weight 0. If rejected tokens leave the denominator, only "
    "completions that still train something are counted",
}
CORRECTION_METRICS = MISMATCH_METRICS | WEIGHT_METRICS


@without_gradient
def correction_metrics(correction: Correction | None, outputs: Outputs, batch: Batch) -> Metrics:
    """Return metrics over the rows that train something, including rejected tokens. There are none without the
    sampler's log-probabilities."""
    mask_BT = batch.completion_mask_BT
    if batch.correction_BT is not None:
        mask_BT = mask_BT | (batch.correction_BT == 0)
    if batch.sampling_logprobs_BT is None or nothing_in(mask_BT):
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
    """Return the mismatch of the trainer's log-probabilities `before_BT` and the sampler's `sampling_BT`."""
    delta_BT, nonempty_B1 = sampler_log_ratio(before_BT, sampling_BT, mask_BT), mask_BT.any(dim=-1, keepdim=True)
    return {
        "mismatch/kl": mean_over(-delta_BT, mask_BT),
        "mismatch/k3": mean_over(delta_BT.expm1() - delta_BT, mask_BT),
        "mismatch/abs_mean": mean_over(delta_BT.abs(), mask_BT),
        "mismatch/abs_max": Max(number(delta_BT.abs().max())),
        "mismatch/chi2_token": mean_over(delta_BT.exp().square() - 1, mask_BT),
        "mismatch/chi2_seq": mean_over(sequence_weight(delta_BT, mask_BT).square() - 1, nonempty_B1),
        "mismatch/ppl_ratio": mean_over(geometric_weight(-delta_BT, mask_BT), nonempty_B1),
        "mismatch/unreported_fraction": mean_over(unreported(sampling_BT, mask_BT).float(), mask_BT),
    }


def weight_metrics(correction: Correction, delta_BT: Tensor, weight_BT: Tensor, mask_BT: Tensor) -> Metrics:
    """Return metrics of the applied weights: one weight per token, or one per completion."""
    raw = LEVELS[correction.level](delta_BT, mask_BT)
    applied, counted = weight_BT, mask_BT
    if raw.shape[-1] == 1 and mask_BT.shape[-1] != 1:
        applied, counted = masked(weight_BT, mask_BT).amax(dim=-1, keepdim=True), mask_BT.any(dim=-1, keepdim=True)
    w = masked(applied, counted).double()
    outside = ~within(raw, correction.low, correction.high)
    held = outside.float() if correction.action == "truncate" else torch.zeros_like(raw)
    return {
        "is/ess_fraction": EffectiveShare(number(counted.sum()), number(w.sum()), number(w.square().sum())),
        "is/truncated_fraction": mean_over(held, counted),
        "is/masked_fraction": mean_over((weight_BT == 0).float(), mask_BT),
    }
