"""SFT: the loss is the mean over all trained tokens of the step, whatever the split."""

import pytest
import torch

from posttrain.algorithms import SFT
from posttrain.train.metrics import MetricLog
from posttrain.types import Batch, Outputs, Tokens, count_totals

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
    assert float(metrics["sft/nll"]) == pytest.approx(0.82, rel=1e-8)
    assert float(metrics["sft/perplexity"]) == pytest.approx(2.270499838, rel=1e-8)
    torch.testing.assert_close(logprobs_BT.grad, -0.1 * batch.completion_mask_BT.double(), rtol=1e-12, atol=0)


def test_micro_batches_are_not_averaged():
    """The mean of the means of parts {1} and {2, 3} would be 0.7761904762."""
    logprobs_BT, batch = worked_example()
    parts = [SFT().loss(logprobs_BT[rows], batch.rows(rows), count_totals(batch))[0].item() for rows in ([0], [1, 2])]
    assert sum(parts) == pytest.approx(0.82, rel=1e-12)


def test_it_asks_for_nothing():
    assert SFT().needs == frozenset()
    assert SFT().data_kind == "examples"


def test_an_empty_batch_is_zero():
    logprobs_BT, batch = worked_example()
    batch = Batch(completion_mask_BT=torch.zeros_like(batch.completion_mask_BT), groups_B=batch.groups_B)
    loss, _ = SFT().loss(logprobs_BT, batch, count_totals(batch))
    loss.backward()
    assert loss.item() == 0
    assert (logprobs_BT.grad == 0).all()


def test_dft_weighs_each_token_by_its_probability_and_that_weight_is_a_constant():
    logprobs_BT, batch = worked_example()
    loss, metrics = SFT(dft=True).loss(logprobs_BT, batch, count_totals(batch))
    loss.backward()
    assert loss.item() == pytest.approx(0.2893730805, rel=1e-8)
    mask_BT = batch.completion_mask_BT
    weights_BT = logprobs_BT.detach().exp().where(mask_BT, torch.zeros(()).double())
    torch.testing.assert_close(logprobs_BT.grad, -0.1 * weights_BT, rtol=1e-12, atol=0)
    assert float(metrics["sft/nll"]) == pytest.approx(0.82, rel=1e-8)  # the metric keeps its meaning


def test_dft_leaves_a_token_of_probability_one_what_it_is():
    batch = Batch(completion_mask_BT=torch.ones(1, 2, dtype=torch.bool), groups_B=torch.arange(1))
    logprobs_BT = torch.zeros(1, 2).requires_grad_()
    (plain,) = torch.autograd.grad(SFT().loss(logprobs_BT, batch, count_totals(batch))[0], logprobs_BT)
    (weighted,) = torch.autograd.grad(SFT(dft=True).loss(logprobs_BT, batch, count_totals(batch))[0], logprobs_BT)
    assert torch.equal(plain, weighted)


def test_metrics_of_a_step_do_not_depend_on_how_it_is_split():
    logprobs_BT, batch = worked_example()
    top1_BT = torch.tensor([[1, 0, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 0, 1, 0]], dtype=torch.bool)
    tokens = Tokens(input_ids_BT=torch.zeros(3, 6, dtype=torch.long), lengths_B=torch.tensor([4, 5, 6]))
    batch = Batch(completion_mask_BT=batch.completion_mask_BT, groups_B=batch.groups_B, tokens=tokens)
    log = MetricLog()
    for rows in ([0], [1, 2]):
        outputs = Outputs(logprobs_BT[rows], top1_BT=top1_BT[rows])
        log.add(SFT().loss(outputs, batch.rows(rows), count_totals(batch))[1])
    found = log.reduce()
    assert found["sft/perplexity"] == pytest.approx(2.270499838, rel=1e-8)
    assert found["sft/token_accuracy"] == pytest.approx(4 / 10)
    assert found["sft/trained_fraction"] == pytest.approx(10 / 15)


def test_without_the_flag_of_the_forward_pass_there_is_no_token_accuracy():
    logprobs_BT, batch = worked_example()
    _, metrics = SFT().loss(logprobs_BT, batch, count_totals(batch))
    assert "sft/token_accuracy" not in metrics
    assert "sft/trained_fraction" not in metrics
