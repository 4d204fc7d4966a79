"""One training step, whichever algorithm. It learns from experience and never samples.

advantages  experience -> batch: what the algorithm asked for is computed, then its advantages
minibatch   one optimizer step each, with denominators counted over all of its rows before the first backward
micro       a part that fits the token budget; the gradient does not depend on the split, nor on who computes it
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
"""The announcement of the first rank; the others take the same step, each with its part of the rows."""


def train_step(trainer: Trainer, experience: Experience | Batch, step: int) -> tuple[Batch, MetricLog]:
    """Compute advantages and update: the weights that become policy version `step`.

    Returns the batch that was learned from, and the metrics of its updates. A non-finite number changes no weight.
    """
    with trainer.ranks.together(STEP, experience, step):
        return _train_step(trainer, experience, step)


def _train_step(trainer: Trainer, experience: Experience | Batch, step: int) -> tuple[Batch, MetricLog]:
    config, metrics, updates = trainer.config, MetricLog(), 0
    seed = config.seed * 1_000_003 + step + 1_000_000_007 * trainer.rows.rank
    torch.manual_seed(seed % 2**63)  # dropout, where the model has any
    batch = trainer.advantages(experience)
    metrics.add(trainer.advantages.metrics())
    for minibatch in minibatches(batch, config.train, seed=config.seed, step=step):
        if count_totals(minibatch).tokens == 0:
            continue  # nothing was scored: there is no step to take
        minibatch = trainer.algorithm.prepare(trainer.advantages.refresh(minibatch, moved=updates > 0))
        totals = count_totals(minibatch)
        if totals.tokens == 0:
            continue  # all of it was rejected as too far from its sampler
        with trainer.loaded.compute.scope():
            metrics.add(trainer.update(minibatch, totals, step, number=updates))
        updates += 1
    return batch, metrics


def minibatches(batch: Batch, config: TrainConfig, *, seed: int, step: int) -> Iterator[Batch]:
    """`epochs` passes over the batch, each shuffled by (seed, step, epoch) and cut into `minibatches` even parts.

    What is shuffled and dealt out are the units of the batch: rows, or pairs of rows that a loss compares.
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
