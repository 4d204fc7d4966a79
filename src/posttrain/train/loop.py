"""One training step, whichever algorithm. It is fed with experience and never samples.

weigh      experience -> batch: what the algorithm asked for is computed, then its advantages
minibatch  one optimizer step each, with denominators counted before the first backward
micro      a part that fits the token budget; the gradient does not depend on the split
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from posttrain.models.microbatches import split_for
from posttrain.train.metrics import MetricLog
from posttrain.train.publish import mismatch_metrics
from posttrain.types import Batch, Experience, Mean, Metrics, Totals, count_totals

if TYPE_CHECKING:
    from posttrain.config import TrainConfig
    from posttrain.train.run import Run


def train_step(run: Run, experience: Experience | Batch, step: int) -> tuple[Batch, MetricLog]:
    """Weigh and update: the weights that become policy version `step`. A non-finite number changes no weight.

    Returns the batch that was learned from, and the metrics of its updates.
    """
    metrics = MetricLog()
    torch.manual_seed((run.config.seed * 1_000_003 + step) % 2**63)  # dropout, where the model has any
    batch = run.weigh(experience)
    metrics.add(run.weigh.metrics())
    updates = 0
    for minibatch in minibatches(batch, run.config.train, seed=run.config.seed, step=step):
        if count_totals(minibatch).tokens == 0:
            continue  # nothing was scored: there is no step to take
        minibatch = run.algorithm.prepare(run.refresh(minibatch, moved=updates > 0))
        if count_totals(minibatch).tokens == 0:
            continue  # all of it was rejected as too far from its sampler
        with run.compute.scope():
            metrics.add(update(run, minibatch, step, number=updates))
        updates += 1
    return batch, metrics


def update(run: Run, minibatch: Batch, step: int, *, number: int = 0) -> Metrics:
    """One optimizer step on these rows: update `number` of the step."""
    totals = count_totals(minibatch)
    log, loss_sum = MetricLog(), 0.0
    run.loaded.model.train()  # dropout of the adapters; everything else computes without it
    for _, micro in split_for(run.forward, run.config.train.tokens_per_microbatch)(minibatch):
        outputs = run.forward(micro)
        loss, metrics = run.algorithm.loss(outputs, micro, totals)
        run.guards.check_loss(loss, outputs, micro, step)
        if loss.requires_grad:
            loss.backward()
        loss_sum += loss.item()
        log.add(metrics | mismatch_metrics(outputs, micro))
    log.add(run.add_gradient(step, number))
    run.loaded.model.eval()
    log.add({"loss": Mean(loss_sum, 1.0)})
    log.add(run.optimizer.step(step, on_norm=partial(check_gradient, run, minibatch, totals, step)))
    return log.merged


def check_gradient(run: Run, minibatch: Batch, totals: Totals, step: int, norm: float) -> None:
    """Raise `NonFiniteError` for a gradient that is not finite; rows are tried one by one to name the worst."""

    def norm_of(row: Batch) -> float:
        loss, _ = run.algorithm.loss(run.forward(row), row, totals)
        gradients = torch.autograd.grad(loss, run.optimizer.parameters, allow_unused=True)
        return float(torch.nn.utils.get_total_norm([g for g in gradients if g is not None]))

    run.guards.check_gradient(norm, minibatch, step, row_norm=norm_of)


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
