"""Code that the losses on preference pairs share: the two sides of each pair, their scores, denominators and metrics.

N is the number of pairs. In tensors of shape 2N the chosen side comes first, so that `chosen_N, rejected_N = x_2N`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from posttrain.algorithms.base import Algorithm, DataKind, Need
from posttrain.algorithms.metrics import ENTROPY_METRICS, mean_over
from posttrain.algorithms.settings import settings
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.preferences import averaged, summed, tail_weighted
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals, whole_pairs

NLLNormalization = Literal["token_mean", "sequence_mean", "sum"]
"""RULE 35: mean over all chosen tokens of the step; or mean or sum over each answer's tokens, then mean over pairs."""


def reward_formulas(reward: str) -> dict[str, str]:
    """Return the formulas of the metrics of `Pairs.metrics`, for a method whose implicit reward is `reward`."""
    return {
        "rewards/chosen": f"mean over the pairs of R(chosen), R = {reward}",
        "rewards/rejected": "mean over the pairs of R(rejected)",
        "rewards/margins": "mean over the pairs of R(chosen) - R(rejected)",
        "rewards/accuracies": "share of pairs with R(chosen) > R(rejected); ties are wrong, so an untrained policy "
        "that is its own reference has 0, except for pairs that rounding orders",
        "logps/chosen": "mean over the pairs of the summed log-probability of the chosen answer; if it falls while the "
        "margin rises, both answers are being unlearned",
        "logps/rejected": "mean over the pairs of the summed log-probability of the rejected answer",
        "nll_loss": "mean of -logprobs over the trained tokens of the chosen answers",
    } | ENTROPY_METRICS


LOG_RATIO_METRICS = reward_formulas("beta * r, r = sum_t (logprobs - ref_logprobs)")


@settings
class PairLoss(Algorithm):
    """A loss on preference pairs; its `loss` begins with `pairs_of` and ends with `Pairs.mean` and `Pairs.metrics`."""

    data_kind: ClassVar[DataKind] = "pairs"
    metrics: ClassVar[dict[str, str]] = LOG_RATIO_METRICS
    reference_free: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset() if self.reference_free else frozenset[Need]({"reference"})


def no_reference() -> ConfigError:
    return ConfigError(
        given="a loss that compares with a reference, but there are no reference log-probabilities",
        allowed="ref_logprobs_BT",
        fix="Pass ref_logprobs_BT, or use an algorithm without a reference: simpo, orpo or cpo.",
    )


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The pairs of a batch. A pair with an empty side trains nothing: both sides are masked, and `whole_N` is false."""

    logprobs_2NT: Tensor
    """Log-probabilities with gradient; exactly 0 outside the mask."""
    ref_logprobs_2NT: Tensor | None
    entropy_2NT: Tensor | None
    mask_2NT: Tensor
    whole_N: Tensor
    rows_2N: Tensor
    """Index of the batch row of each side."""

    def log_probs(self) -> Tensor:
        """`[2, N]` S(y) = sum_t logprobs."""
        return summed(self.logprobs_2NT, self.mask_2NT)

    def mean_log_probs(self) -> Tensor:
        """`[2, N]` S(y) / |y|."""
        return averaged(self.logprobs_2NT, self.mask_2NT)

    def ref_log_probs(self) -> Tensor:
        """`[2, N]` S_ref(y) = sum_t ref_logprobs."""
        return summed(self._reference(), self.mask_2NT)

    def log_ratios(self, tail_weight: float = 1.0) -> Tensor:
        """`[2, N]` r(y) = sum_t (logprobs - ref_logprobs), tokens beyond the shorter answer times `tail_weight`."""
        log_ratio_2NT = self.logprobs_2NT - self._reference()
        if tail_weight != 1:
            log_ratio_2NT = tail_weighted(log_ratio_2NT, self.mask_2NT, tail_weight)
        return summed(log_ratio_2NT, self.mask_2NT)

    def mean_log_ratios(self) -> Tensor:
        """`[2, N]` r(y) / |y|."""
        return averaged(self.logprobs_2NT - self._reference(), self.mask_2NT)

    def _reference(self) -> Tensor:
        if self.ref_logprobs_2NT is None:
            raise no_reference()
        return self.ref_logprobs_2NT

    def mean(self, loss_N: Tensor, totals: Totals) -> Tensor:
        """Return the sum over these pairs, divided by the number of pairs of the whole step."""
        return masked(loss_N, self.whole_N).sum() / max(1, totals.pairs)

    def nll(self, normalization: NLLNormalization, totals: Totals) -> Tensor:
        """Return the negative log-likelihood of the chosen answers, averaged by `normalization` (RULE 35)."""
        nll_NT, mask_NT = -self.logprobs_2NT[0], self.mask_2NT[0]
        if normalization == "token_mean":
            return summed(nll_NT, mask_NT).sum() / max(1, totals.chosen_tokens)
        per_pair = averaged if normalization == "sequence_mean" else summed
        return self.mean(per_pair(nll_NT, mask_NT), totals)

    @without_gradient
    def metrics(self, rewards_2N: Tensor) -> Metrics:
        """Return the metrics that every method logs. `rewards_2N` are the implicit rewards of the answers
        (`reward_formulas`)."""
        chosen_N, rejected_N = rewards_2N.detach()
        log_probs_2N = self.log_probs()
        metrics: Metrics = {
            "rewards/chosen": mean_over(chosen_N, self.whole_N),
            "rewards/rejected": mean_over(rejected_N, self.whole_N),
            "rewards/margins": mean_over(chosen_N - rejected_N, self.whole_N),
            "rewards/accuracies": mean_over((chosen_N > rejected_N).double(), self.whole_N),
            "logps/chosen": mean_over(log_probs_2N[0], self.whole_N),
            "logps/rejected": mean_over(log_probs_2N[1], self.whole_N),
            "nll_loss": mean_over(-self.logprobs_2NT[0], self.mask_2NT[0]),
        }
        if self.entropy_2NT is not None:
            metrics["entropy"] = mean_over(self.entropy_2NT, self.mask_2NT)
        return metrics


def pairs_of(outputs: Outputs | Tensor, batch: Batch) -> Pairs:
    """Return the pairs of these rows, which may be in any order."""
    outputs = Outputs.of(outputs, batch)
    rows_2N, whole_N = torch.stack(batch.pairs), whole_pairs(batch)
    mask_2NT = batch.completion_mask_BT[rows_2N] & whole_N[:, None]
    ref_BT, entropy_BT = batch.ref_logprobs_BT, outputs.entropy_BT
    return Pairs(
        logprobs_2NT=masked(outputs.logprobs_BT[rows_2N], mask_2NT),
        ref_logprobs_2NT=None if ref_BT is None else masked(ref_BT.detach()[rows_2N], mask_2NT),
        entropy_2NT=None if entropy_BT is None else entropy_BT[rows_2N],
        mask_2NT=mask_2NT,
        whole_N=whole_N,
        rows_2N=rows_2N,
    )
