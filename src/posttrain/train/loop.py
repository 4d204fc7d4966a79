"""One training step, the same for every algorithm. It learns from experience and never samples.

advantages  experience -> batch: computes the inputs that the algorithm needs, then its advantages
minibatch   one optimizer step, with denominators counted over all of its rows before the first backward
micro       a part that fits the token budget; the gradient depends neither on the split nor on the computing rank
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from posttrain.train.metrics import MetricLog
from posttrain.types import Batch, Experience, count_totals

if TYPE_CHECKING:
    from posttrain.config import TrainConfig
    from posttrain.train.trainer import Trainer


STEP = "step"
"""The first rank's announcement of a step. The other ranks take the same step, each with its part of the rows."""


def train_step(trainer: Trainer, experience: Experience | Batch, step: int) -> tuple[Batch, MetricLog]:
    """Compute advantages and update the weights, which become policy version `step`.

    Returns the batch of the step, and the metrics of its updates. If a number is not finite, no weight changes.
    """
    with trainer.ranks.together(STEP, experience, step):
        return _train_step(trainer, experience, step)


def _train_step(trainer: Trainer, experience: Experience | Batch, step: int) -> tuple[Batch, MetricLog]:
    config, metrics, updates = trainer.config, MetricLog(), 0
    seed = config.seed * 1_000_003 + step + 1_000_000_007 * trainer.rows.rank
    torch.manual_seed(seed % 2**63)  # for dropout, if the model has any
    batch = trainer.advantages(experience)
    metrics.add(trainer.advantages.metrics())
    for minibatch in minibatches(batch, config.train, seed=config.seed, step=step):
        if count_totals(minibatch).tokens == 0:
            continue  # no row was scored: skip the update
        minibatch = trainer.algorithm.prepare(trainer.advantages.refresh(minibatch, moved=updates > 0))
        totals = count_totals(minibatch)
        if totals.tokens == 0:
            continue  # the correction rejected all tokens as too far from their sampler
        with trainer.loaded.compute.scope():
            metrics.add(trainer.update(minibatch, totals, step, number=updates))
        updates += 1
    return batch, metrics


def minibatches(batch: Batch, config: TrainConfig, *, seed: int, step: int) -> Iterator[Batch]:
    """`epochs` passes over the batch, each shuffled by (seed, step, epoch) and cut into `minibatches` even parts.

    It shuffles and splits the units of the batch: single rows, or pairs of rows that a loss compares.
    """
    units = batch.units
    for epoch in range(config.epochs):
        if config.minibatches == 1:
            yield batch
            continue
        generator = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 1_009 + epoch) % 2**63)
        order = torch.randperm(len(units), generator=generator)
        for part in torch.tensor_split(order, config.minibatches):
            yield batch.rows([row for unit in part.tolist() for row in units[unit]])
