"""Reward regression: numbers by hand, finite differences, invariances and refusals."""

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

from posttrain.algorithms.reward_regression import RewardRegression
from posttrain.errors import ConfigError
from posttrain.testing.invariances import merge
from posttrain.types import Batch, Metrics, Outputs, count_totals

SCORES, RATINGS = [1.5, -0.5, 0.25], [1.0, 0.0, 1.0]
NAN = float("nan")
LOSSES = {name: RewardRegression(regress=name) for name in ("standardized", "squared", "logistic")}


def outputs_of(scores: list[float]) -> Outputs:
    return Outputs(
        logprobs_BT=torch.zeros(len(scores), 2),
        scores_B=torch.tensor(scores, dtype=torch.float64, requires_grad=True),
    )


def batch_of(ratings: list[float]) -> Batch:
    return Batch.from_ratings(
        torch.tensor([[False, True]]).repeat(len(ratings), 1), torch.tensor(ratings, dtype=torch.float64)
    )


def evaluate(algorithm: RewardRegression, scores: list[float], batch: Batch) -> tuple[float, Metrics]:
    loss, metrics = algorithm.loss(outputs_of(scores), batch, count_totals(batch))
    return loss.item(), metrics


def by_hand(s: float, y: float) -> float:
    return -y * math.log(1 / (1 + math.exp(-s))) - (1 - y) * math.log(1 / (1 + math.exp(s)))


@catalogue(
    "name, expected",
    [
        ("squared", (0.25 + 0.25 + 0.5625) / 3),
        ("standardized", (0.25 + 0.25 + 0.5625) / 3),
        ("logistic", sum(map(by_hand, SCORES, RATINGS)) / 3),
    ],
)
def test_the_mean_over_three_answers(name, expected):
    """The feed standardises the ratings, so for the same targets both losses are the same square."""
    assert evaluate(LOSSES[name], SCORES, batch_of(RATINGS))[0] == pytest.approx(expected, rel=1e-12)


def test_the_metrics_are_their_formulas():
    _, metrics = evaluate(LOSSES["squared"], SCORES, batch_of(RATINGS))
    found = {name: float(value) for name, value in metrics.items()}
    errors = torch.tensor(RATINGS, dtype=torch.float64) - torch.tensor(SCORES, dtype=torch.float64)
    assert found == pytest.approx(
        {
            "mae": 1.75 / 3,
            "explained_variance": 1
            - float(errors.var(correction=0) / torch.tensor(RATINGS).double().var(correction=0)),
            "reward/mean": 1.25 / 3,
            "reward/std": float(torch.tensor(SCORES).double().std(correction=0)),
        }
    )
    assert found.keys() == RewardRegression.card.metrics.keys()
    _, metrics = evaluate(LOSSES["logistic"], SCORES, batch_of(RATINGS))
    assert float(metrics["reward/mean"]) == pytest.approx(sum(1 / (1 + math.exp(-s)) for s in SCORES) / 3)


@catalogue("name", LOSSES)
def test_the_gradient_is_that_of_finite_differences(name):
    batch = batch_of([0.3, 0.9, 0.0])

    def loss(scores_B: Tensor) -> Tensor:
        return LOSSES[name].loss(Outputs(torch.zeros(3, 2), scores_B=scores_B), batch, count_totals(batch))[0]

    assert torch.autograd.gradcheck(loss, outputs_of(SCORES).scores_B, eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@given(
    owner=st.lists(st.integers(0, 2), min_size=7, max_size=7), order=st.permutations(range(7)), seed=st.integers(0, 50)
)
def test_neither_order_nor_split_matters(name, owner, order, seed):
    dice = random.Random(seed)
    outputs, batch = outputs_of([dice.gauss(0, 2) for _ in range(7)]), batch_of([dice.random() for _ in range(7)])
    assert outputs.scores_B is not None
    totals, merged = count_totals(batch), {}
    whole, metrics = LOSSES[name].loss(outputs, batch, totals)
    parts = [[row for row in order if owner[row] == part] for part in range(3)]
    losses = []
    for rows in filter(None, parts):
        part = Outputs(outputs.logprobs_BT[rows], scores_B=outputs.scores_B[rows])
        loss, found = LOSSES[name].loss(part, batch.rows(rows), totals)
        losses.append(loss)
        merged = merge(merged, found)
    gradients = [torch.autograd.grad(x, outputs.scores_B, retain_graph=True)[0] for x in (whole, sum(losses))]  # type: ignore[arg-type]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-15)
    assert {n: float(m) for n, m in merged.items()} == pytest.approx({n: float(m) for n, m in metrics.items()})


@catalogue("name", LOSSES)
def test_a_row_without_an_answer_is_in_no_sum_and_no_denominator(name):
    batch = batch_of([*RATINGS, NAN])
    batch.completion_mask_BT[3] = False
    outputs = outputs_of([*SCORES, NAN])
    loss, metrics = LOSSES[name].loss(outputs, batch, count_totals(batch))
    assert loss.item() == pytest.approx(evaluate(LOSSES[name], SCORES, batch_of(RATINGS))[0], rel=1e-12)
    assert all(math.isfinite(float(value)) for value in metrics.values())
    (gradient_B,) = torch.autograd.grad(loss, outputs.scores_B)  # type: ignore[arg-type]
    assert gradient_B[3] == 0


def test_nothing_to_learn_from_is_zero_and_not_nan():
    batch = batch_of(RATINGS)
    batch = replace(batch, completion_mask_BT=torch.zeros_like(batch.completion_mask_BT))
    assert evaluate(LOSSES["squared"], SCORES, batch) == (0.0, {})


@catalogue("score", [1e4, -1e4])
def test_far_scores_stay_finite(score):
    outputs, batch = outputs_of([score]), batch_of([0.5])
    loss, _ = LOSSES["logistic"].loss(outputs, batch, count_totals(batch))
    assert loss.item() == 5e3


@catalogue(
    "outputs, batch",
    [(torch.zeros(3, 2), batch_of(RATINGS)), (outputs_of(SCORES), replace(batch_of(RATINGS), targets_B=None))],
)
def test_scores_and_ratings_are_both_needed(outputs, batch):
    with pytest.raises(ConfigError, match="no scores from the forward pass, or no ratings of the rows"):
        LOSSES["squared"].loss(outputs, batch, count_totals(batch))


def test_ratings_of_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"targets_B has shape \[2\], but completion_mask_BT has 3 rows"):
        Batch.from_ratings(torch.ones(3, 2), torch.ones(2))


def test_a_loss_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"reward_regression\.regress = 'huber'; allowed: 'standardized', 'squared'"):
        RewardRegression(regress="huber")  # type: ignore[arg-type]


@catalogue("rating", [5.0, -0.1])
def test_the_cross_entropy_refuses_ratings_outside_0_to_1(rating: float):
    batch = batch_of([rating, *RATINGS[1:]])
    with pytest.raises(ConfigError, match=r"ratings from .*; allowed: numbers from 0 to 1"):
        evaluate(LOSSES["logistic"], SCORES, batch)
    evaluate(LOSSES["squared"], SCORES, batch)
