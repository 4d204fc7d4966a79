"""SFT: the mean over all trained tokens of the step, whatever the split."""

import math

import pytest
import torch

from posttrain.algorithms import SFT
from posttrain.types import Batch, count_totals

NAN = float("nan")
LOGPROBS = [[-0.5, -1.2, -0.3, NAN, NAN], [-2.0, -0.7, NAN, NAN, NAN], [-0.1, -1.5, -0.9, -0.4, -0.6]]


def worked_example() -> tuple[torch.Tensor, Batch]:
    logprobs_BT = torch.tensor(LOGPROBS, dtype=torch.float64)
    batch = Batch(completion_mask_BT=~logprobs_BT.isnan(), groups_B=torch.arange(3))
    return logprobs_BT.requires_grad_(), batch


def test_worked_loss_gradient_and_perplexity():
    logprobs_BT, batch = worked_example()
    loss, metrics = SFT().loss(logprobs_BT, batch, count_totals(batch))
    loss.backward()
    assert loss.item() == pytest.approx(0.82, rel=1e-8)
    assert math.exp(float(metrics["sft/nll"])) == pytest.approx(2.270499838, rel=1e-8)
    torch.testing.assert_close(logprobs_BT.grad, -0.1 * batch.completion_mask_BT.double(), rtol=1e-12, atol=0)


def test_micro_batches_are_not_averaged():
    """The mean of the means of {1} and {2, 3} would be 0.7761904762."""
    logprobs_BT, batch = worked_example()
    parts = [SFT().loss(logprobs_BT[rows], batch.rows(rows), count_totals(batch))[0].item() for rows in ([0], [1, 2])]
    assert sum(parts) == pytest.approx(0.82, rel=1e-12)


def test_it_asks_for_nothing_and_takes_no_setting():
    assert SFT().needs == frozenset()
    assert SFT().data_kind == "examples"


def test_an_empty_batch_is_zero():
    logprobs_BT, batch = worked_example()
    batch = Batch(completion_mask_BT=torch.zeros_like(batch.completion_mask_BT), groups_B=batch.groups_B)
    loss, _ = SFT().loss(logprobs_BT, batch, count_totals(batch))
    loss.backward()
    assert loss.item() == 0
    assert (logprobs_BT.grad == 0).all()
