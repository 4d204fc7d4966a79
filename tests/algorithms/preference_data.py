"""Test data for preference losses: fixture P of the algorithm reference, random pairs and labelled answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posttrain.algorithms.base import Algorithm
from posttrain.testing.steps import NAN as NAN
from posttrain.testing.steps import random_step as random_step
from posttrain.types import Batch, Metrics, Outputs, count_totals


@dataclass(frozen=True)
class Evaluated:
    """Loss, gradient and metrics of a batch that is a whole optimizer step."""

    loss: Tensor
    gradient_BT: Tensor
    metrics: Metrics

    def metric(self, name: str) -> float:
        return float(self.metrics[name])


def evaluate(algorithm: Algorithm, outputs: Outputs | Tensor, batch: Batch) -> Evaluated:
    loss, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    (gradient_BT,) = torch.autograd.grad(loss, Outputs.of(outputs).logprobs_BT)
    return Evaluated(loss, gradient_BT, metrics)


def spread(sums: Sequence[float], lengths: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Spread each sum unevenly over its tokens: `[B, T]`. All other places hold nan, so code that reads them fails."""
    x_BT = torch.full((len(sums), max(lengths) + 1), NAN, dtype=torch.float64)
    for row, (total, length) in enumerate(zip(sums, lengths, strict=True)):
        weights_T = torch.arange(1, length + 1, dtype=torch.float64)
        x_BT[row, 1 : length + 1] = total * weights_T / weights_T.sum()
    return x_BT.to(dtype)


@dataclass(frozen=True)
class PairFixture:
    """Pairs given by their answers' summed log-probabilities under policy and reference. Default: fixture P."""

    chosen: Sequence[float] = (-12, -20.3)
    rejected: Sequence[float] = (-15.5, -18.1)
    ref_chosen: Sequence[float] = (-13, -19.9)
    ref_rejected: Sequence[float] = (-14.8, -19)
    chosen_lengths: Sequence[int] = (6, 10)
    rejected_lengths: Sequence[int] = (8, 7)
    dtype: torch.dtype = torch.float64

    @property
    def lengths(self) -> list[int]:
        return [*self.chosen_lengths, *self.rejected_lengths]

    @property
    def logprobs_BT(self) -> Tensor:
        """A new leaf tensor that requires a gradient, on each access."""
        return spread([*self.chosen, *self.rejected], self.lengths, self.dtype).requires_grad_()

    @property
    def batch(self) -> Batch:
        ref_BT = spread([*self.ref_chosen, *self.ref_rejected], self.lengths, self.dtype)
        return Batch.from_pairs(~ref_BT.isnan(), ref_BT)

    def evaluate(self, algorithm: Algorithm) -> Evaluated:
        return evaluate(algorithm, self.logprobs_BT, self.batch)

    def loss(self, algorithm: Algorithm) -> float:
        return self.evaluate(algorithm).loss.item()

    def losses(self, algorithm: Algorithm) -> list[float]:
        """Return the loss of each pair on its own."""
        alone = [(self.logprobs_BT[unit], self.batch.rows(unit)) for unit in self.batch.units]
        return [algorithm.loss(x_BT, batch, count_totals(batch))[0].item() for x_BT, batch in alone]

    def swapped(self) -> "PairFixture":
        return replace(
            self,
            chosen=self.rejected,
            rejected=self.chosen,
            ref_chosen=self.ref_rejected,
            ref_rejected=self.ref_chosen,
            chosen_lengths=self.rejected_lengths,
            rejected_lengths=self.chosen_lengths,
        )


P = PairFixture()
P_FLOAT32 = PairFixture(dtype=torch.float32)
AT_REFERENCE = PairFixture(chosen=P.ref_chosen, rejected=P.ref_rejected)
"""A fixture whose policy equals its reference."""


def one_pair(chosen: float, rejected: float, length: int = 2) -> PairFixture:
    """Return one pair with the given log-ratios."""
    base = -300.0
    return PairFixture([base + chosen], [base + rejected], [base], [base], [length], [length])


@dataclass(frozen=True)
class LabelFixture:
    """Labelled answers given by their log-ratios. Default: the reference's example for KTO and BCO."""

    labels: Sequence[int] = (1, 0, 1, 0)
    log_ratios: Sequence[float] = (0.8, -0.5, -0.3, 0.4)
    mismatched: Sequence[float] | None = (0.2, -0.1, 0.15, 0.05)
    dtype: torch.dtype = torch.float64

    @property
    def lengths(self) -> list[int]:
        return [1 + row % 3 for row in range(len(self.labels))]

    @property
    def logprobs_BT(self) -> Tensor:
        return spread([-3 + r for r in self.log_ratios], self.lengths, self.dtype).requires_grad_()

    @property
    def batch(self) -> Batch:
        ref_BT = spread([-3.0] * len(self.labels), self.lengths, self.dtype)
        mismatched_B = None if self.mismatched is None else torch.tensor(self.mismatched, dtype=self.dtype)
        return Batch.from_labels(~ref_BT.isnan(), torch.tensor(self.labels), ref_BT, mismatched_B)

    def evaluate(self, algorithm: Algorithm) -> Evaluated:
        return evaluate(algorithm, self.logprobs_BT, self.batch)

    def loss(self, algorithm: Algorithm) -> float:
        return self.evaluate(algorithm).loss.item()

    def losses(self, algorithm: Algorithm) -> list[float]:
        """Return each row's share of the step's loss, times the number of rows."""
        batch, rows = algorithm.prepare(replace(self.batch, current_logprobs_BT=self.logprobs_BT.detach())), range(4)
        totals = count_totals(batch)
        return [4 * algorithm.loss(self.logprobs_BT[[row]], batch.rows([row]), totals)[0].item() for row in rows]


LABELS = LabelFixture()
