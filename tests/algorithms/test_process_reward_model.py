"""The process reward model: worked numbers, finite differences, invariances and refusals."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms.process_reward_model import ProcessRewardModel
from posttrain.errors import ConfigError
from posttrain.testing.invariances import merge
from posttrain.types import Batch, Metrics, Outputs, count_totals

NAN = float("nan")
LOGITS, LABELS = [2, 0.5, -1], [1.0, 1.0, 0.0]
ALGORITHM = ProcessRewardModel()


def row_of(values: list[float], width: int = 8) -> list[float]:
    """Return a row whose steps end at every second token. Nothing may read the values between them."""
    row = [NAN] * width
    for step, value in enumerate(values):
        row[2 * step + 1] = value
    return row


def outputs_of(*rows: list[float]) -> Outputs:
    scores_BT = torch.tensor([row_of(row) for row in rows], dtype=torch.float64, requires_grad=True)
    return Outputs(logprobs_BT=torch.zeros(scores_BT.shape), scores_BT=scores_BT)


def batch_of(*rows: list[float]) -> Batch:
    targets_BT = torch.tensor([row_of(row) for row in rows], dtype=torch.float64)
    return Batch.from_steps(~targets_BT.isnan(), targets_BT)


def evaluate(logits: list[list[float]], labels: list[list[float]]) -> tuple[float, Metrics]:
    batch = batch_of(*labels)
    loss, metrics = ALGORITHM.loss(outputs_of(*logits), batch, count_totals(batch))
    return loss.item(), metrics


def test_three_steps_two_of_them_right():
    loss, metrics = evaluate([LOGITS], [LABELS])
    assert loss == pytest.approx(0.3047555609, rel=1e-9)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {
            "accuracy": 1.0,
            "step/right_mean": (0.880797078 + 0.6224593312) / 2,
            "step/wrong_mean": 0.2689414214,
            "step/count": 3,
        },
        rel=1e-9,
    )
    assert metrics.keys() == ProcessRewardModel.card.metrics.keys()


def test_every_labelled_step_weighs_the_same_whatever_answer_it_is_of():
    """The loss is not the mean of the answers' means."""
    together, _ = evaluate([LOGITS, [0.3]], [LABELS, [0.0]])
    assert together == pytest.approx((3 * 0.3047555609 + math.log(1 + math.exp(0.3))) / 4, rel=1e-9)


def test_a_soft_label_is_learned_to_its_own_probability():
    """The loss is smallest at sigmoid(z) = y."""
    at = {z: evaluate([[z]], [[0.25]])[0] for z in (-2.0, math.log(1 / 3), 0.0)}
    assert min(at, key=at.__getitem__) == math.log(1 / 3)
    assert at[0.0] == pytest.approx(math.log(2))


def test_a_step_without_a_label_is_in_no_sum_and_no_denominator():
    batch = batch_of(LABELS)
    batch.completion_mask_BT[0, 3] = False
    outputs = outputs_of(LOGITS)
    loss, _ = ALGORITHM.loss(outputs, batch, count_totals(batch))
    expected, _ = evaluate([[2, -1]], [[1.0, 0.0]])
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    (gradient_BT,) = torch.autograd.grad(loss, outputs.scores_BT)  # type: ignore[arg-type]
    assert (gradient_BT[0] != 0).nonzero().flatten().tolist() == [1, 5]


def test_no_steps_are_no_loss():
    batch = batch_of(LABELS)
    batch = replace(batch, completion_mask_BT=torch.zeros_like(batch.completion_mask_BT))
    assert ALGORITHM.loss(outputs_of(LOGITS), batch, count_totals(batch))[0].item() == 0.0


def test_the_gradient_is_that_of_finite_differences():
    batch = Batch.from_steps(torch.tensor([[True, False, True], [False, True, True]]), torch.rand(2, 3).double())

    def loss(scores_BT: Tensor) -> Tensor:
        return ALGORITHM.loss(Outputs(torch.zeros(2, 3), scores_BT=scores_BT), batch, count_totals(batch))[0]

    generator = torch.Generator().manual_seed(0)
    scores_BT = torch.randn(2, 3, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(loss, scores_BT, eps=1e-6, atol=1e-7, rtol=1e-6)


@given(
    owner=st.lists(st.integers(0, 2), min_size=6, max_size=6), order=st.permutations(range(6)), seed=st.integers(0, 50)
)
def test_neither_order_nor_split_matters(owner, order, seed):
    dice = random.Random(seed)
    counts = [dice.randint(1, 4) for _ in range(6)]
    outputs = outputs_of(*([dice.gauss(0, 2) for _ in range(count)] for count in counts))
    batch = batch_of(*([dice.choice([0.0, 1.0, 0.3]) for _ in range(count)] for count in counts))
    assert outputs.scores_BT is not None
    totals, merged, losses = count_totals(batch), {}, []
    whole, metrics = ALGORITHM.loss(outputs, batch, totals)
    for rows in filter(None, ([row for row in order if owner[row] == part] for part in range(3))):
        part = Outputs(outputs.logprobs_BT[rows], scores_BT=outputs.scores_BT[rows])
        loss, found = ALGORITHM.loss(part, batch.rows(rows), totals)
        losses.append(loss)
        merged = merge(merged, found)
    gradients = [torch.autograd.grad(x, outputs.scores_BT, retain_graph=True)[0] for x in (whole, sum(losses))]  # type: ignore[arg-type]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-15)
    assert {n: float(m) for n, m in merged.items()} == pytest.approx(
        {n: float(m) for n, m in metrics.items()}, nan_ok=True
    )


@catalogue(
    "outputs, batch",
    [(torch.zeros(1, 8), batch_of(LABELS)), (outputs_of(LOGITS), replace(batch_of(LABELS), targets_BT=None))],
)
def test_scores_and_labels_are_both_needed(outputs, batch):
    with pytest.raises(ConfigError, match="no scores from the forward pass, or no step labels"):
        ALGORITHM.loss(outputs, batch, count_totals(batch))


def test_labels_outside_0_to_1_are_refused():
    batch = Batch.from_steps(torch.ones(1, 2), torch.tensor([[7.0, 1.0]]))
    outputs = Outputs(logprobs_BT=torch.zeros(1, 2), scores_BT=torch.tensor([[9.0, 0.0]]))
    with pytest.raises(ConfigError, match="labels of steps from 1 to 7; allowed: numbers from 0 to 1"):
        ALGORITHM.loss(outputs, batch, count_totals(batch))


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"targets_BT has shape \[1, 2\], but completion_mask_BT \[1, 3\]"):
        Batch.from_steps(torch.ones(1, 3), torch.ones(1, 2))


@catalogue("settings, named", [({"aggregate": "sum"}, "aggregate"), ({"separator": ""}, "separator")])
def test_settings_that_cannot_be_meant_are_refused(settings, named):
    with pytest.raises(ConfigError, match=rf"process_reward_model\.{named} = "):
        ProcessRewardModel(**settings)
