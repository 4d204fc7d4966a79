"""The Bradley-Terry reward model: worked numbers, the invariances of pairs, and refusals."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms.reward_model import RewardModel
from posttrain.errors import ConfigError
from posttrain.testing.invariances import merge
from posttrain.types import Batch, Metrics, Outputs, Totals, count_totals

CHOSEN, REJECTED = [1.2, -0.3, 0.8], [0.4, 0.1, 0.8]
NAN = float("nan")


def outputs_of(scores: list[float] | Tensor) -> Outputs:
    scores_B = torch.as_tensor(scores, dtype=torch.float64).clone().requires_grad_()
    return Outputs(logprobs_BT=torch.zeros(len(scores_B), 2), scores_B=scores_B)


def batch_of(pairs: int = 3, margins: list[float] | None = None) -> Batch:
    margins_N = None if margins is None else torch.tensor(margins, dtype=torch.float64)
    return Batch.from_pairs(torch.tensor([[False, True]]).repeat(2 * pairs, 1), margins_N=margins_N)


def evaluate(algorithm: RewardModel, scores: list[float], batch: Batch) -> tuple[float, Metrics]:
    loss, metrics = algorithm.loss(outputs_of(scores), batch, count_totals(batch))
    return loss.item(), metrics


def exactly(number: float):
    return pytest.approx(number, rel=1e-8)


# worked numbers


@catalogue(
    "algorithm, margins, expected",
    [
        (RewardModel(), None, 0.6590876996),
        (RewardModel(margin="data"), [1, 0, 1 / 3], 0.8615976766),
        (RewardModel(center_coef=0.01), None, 0.6762876996),
    ],
)
def test_the_mean_over_three_pairs(algorithm, margins, expected):
    assert evaluate(algorithm, CHOSEN + REJECTED, batch_of(margins=margins))[0] == exactly(expected)


@catalogue(
    "chosen, rejected, expected", [(1.2, 0.4, 0.3711006659), (-0.3, 0.1, 0.9130152524), (0.8, 0.8, 0.6931471806)]
)
def test_the_loss_of_one_pair(chosen, rejected, expected):
    assert evaluate(RewardModel(), [chosen, rejected], batch_of(1))[0] == exactly(expected)


def test_one_margin_for_all_pairs_is_that_margin_in_each_row():
    one, _ = evaluate(RewardModel(margin=0.5), CHOSEN + REJECTED, batch_of())
    each, _ = evaluate(RewardModel(margin="data"), CHOSEN + REJECTED, batch_of(margins=[0.5] * 3))
    assert one == exactly(each)


def test_a_tie_counts_as_wrong():
    _, metrics = evaluate(RewardModel(), CHOSEN + REJECTED, batch_of())
    assert float(metrics["accuracy"]) == exactly(1 / 3)
    assert float(metrics["margin"]) == exactly((0.8 - 0.4 + 0) / 3)
    bounds = {name: float(metrics[f"reward/{name}"]) for name in ("chosen_min", "chosen_max", "rejected_mean")}
    assert bounds == {"chosen_min": -0.3, "chosen_max": 1.2, "rejected_mean": exactly(1.3 / 3)}


def test_the_gradient_is_the_probability_of_the_wrong_order():
    outputs, batch = outputs_of(CHOSEN + REJECTED), batch_of(margins=[1, 0, 1 / 3])
    loss, _ = RewardModel(margin="data").loss(outputs, batch, count_totals(batch))
    (gradient_B,) = torch.autograd.grad(loss, outputs.scores_B)  # type: ignore[arg-type]
    wrong = [1 / (1 + math.exp(a - b - m)) / 3 for a, b, m in zip(CHOSEN, REJECTED, [1, 0, 1 / 3], strict=True)]
    torch.testing.assert_close(gradient_B[:3], -torch.tensor(wrong, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient_B[3:], -gradient_B[:3], rtol=0, atol=0)


@catalogue("difference, expected", [(1e4, 0.0), (-1e4, 1e4)])
def test_far_apart_scores_stay_finite(difference, expected):
    outputs, batch = outputs_of([difference, 0.0]), batch_of(1)
    loss, _ = RewardModel().loss(outputs, batch, count_totals(batch))
    (gradient_B,) = torch.autograd.grad(loss, outputs.scores_B)  # type: ignore[arg-type]
    assert loss.item() == expected
    assert gradient_B.isfinite().all()


# invariances


@given(order=st.permutations(range(10)), seed=st.integers(0, 100))
def test_the_order_of_rows_does_not_matter(order, seed):
    dice = random.Random(seed)
    scores, margins = [dice.gauss(0, 2) for _ in range(10)], [dice.random() for _ in range(5)]
    algorithm, batch = RewardModel(margin="data", center_coef=0.1), batch_of(5, margins)
    loss, metrics = evaluate(algorithm, scores, batch)
    moved, moved_metrics = evaluate(algorithm, [scores[b] for b in order], batch.rows(order))
    assert moved == pytest.approx(loss, rel=1e-12)
    assert {n: float(m) for n, m in moved_metrics.items()} == pytest.approx({n: float(m) for n, m in metrics.items()})


@given(owner=st.lists(st.integers(0, 3), min_size=5, max_size=5), seed=st.integers(0, 100))
def test_any_split_by_units_sums_to_the_same_loss_and_gradient(owner, seed):
    dice = random.Random(seed)
    outputs, batch = outputs_of([dice.gauss(0, 2) for _ in range(10)]), batch_of(5)
    assert outputs.scores_B is not None
    algorithm, totals = RewardModel(margin=0.2, center_coef=0.1), count_totals(batch)
    whole, metrics = algorithm.loss(outputs, batch, totals)
    parts = [
        [row for unit, o in zip(batch.units, owner, strict=True) if o == part for row in unit] for part in range(4)
    ]
    losses, found = zip(
        *(
            algorithm.loss(
                Outputs(outputs.logprobs_BT[rows], scores_B=outputs.scores_B[rows]), batch.rows(rows), totals
            )
            for rows in parts
            if rows
        ),
        strict=True,
    )
    merged: Metrics = {}
    for one in found:
        merged = merge(merged, one)
    gradients = [torch.autograd.grad(x, outputs.scores_B, retain_graph=True)[0] for x in (whole, sum(losses))]  # type: ignore[arg-type]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-15)
    assert {n: float(m) for n, m in merged.items()} == pytest.approx({n: float(m) for n, m in metrics.items()})


def test_a_pair_with_nothing_to_train_on_one_side_is_out_of_the_loss():
    """Whatever its score, the pair also leaves the denominator of the mean and the metrics."""
    batch = batch_of(3)
    batch.completion_mask_BT[4] = False
    outputs = outputs_of([1.2, NAN, 0.8, 0.4, NAN, 0.8])
    totals = count_totals(batch)
    assert totals == Totals(tokens=5, sequences=5, rows=6, pairs=2, chosen_tokens=2)
    loss, metrics = RewardModel(center_coef=0.01).loss(outputs, batch, totals)
    expected, _ = evaluate(RewardModel(center_coef=0.01), [1.2, 0.8, 0.4, 0.8], batch_of(2))
    assert loss.item() == exactly(expected)
    assert float(metrics["accuracy"]) == 0.5
    (gradient_B,) = torch.autograd.grad(loss, outputs.scores_B)  # type: ignore[arg-type]
    assert gradient_B[[1, 4]].tolist() == [0, 0]


def test_nothing_to_train_on_is_zero_and_not_nan():
    batch = batch_of(2)
    batch = replace(batch, completion_mask_BT=torch.zeros_like(batch.completion_mask_BT))
    assert evaluate(RewardModel(), [1.0, 2.0, 3.0, 4.0], batch) == (0.0, {})


def test_only_differences_are_learned_without_centring():
    batch = batch_of()
    shifted = [score + 7 for score in CHOSEN + REJECTED]
    assert evaluate(RewardModel(), shifted, batch)[0] == exactly(0.6590876996)
    assert evaluate(RewardModel(center_coef=0.01), shifted, batch)[0] > 1


# pairs of a batch


def test_the_rows_of_a_pair_are_found_again_after_any_permutation():
    batch = batch_of(3, margins=[1, 2, 3]).rows([5, 0, 3, 2, 1, 4])
    chosen, rejected = batch.pairs
    assert batch.row_ids_B is not None
    assert batch.margins_B is not None
    assert batch.row_ids_B[chosen].tolist() == [0, 1, 2]
    assert batch.row_ids_B[rejected].tolist() == [3, 4, 5]
    assert batch.margins_B[chosen].tolist() == [1, 2, 3]
    assert [[int(batch.row_ids_B[b]) for b in unit] for unit in batch.units] == [[0, 3], [1, 4], [2, 5]]


@catalogue(
    "broken, message",
    [
        (lambda: Batch.from_pairs(torch.ones(3, 2)), "has 3 rows, but pairs have two each"),
        (lambda: Batch.from_pairs(torch.ones(4, 2), margins_N=torch.ones(4)), "but there are 2 pairs"),
        (lambda: batch_of(3).rows([0, 4]).pairs, "a preference pair was torn apart"),
        (
            lambda: Batch(completion_mask_BT=torch.ones(2, 2), groups_B=torch.arange(2)).pairs,
            "holds no preference pairs",
        ),
    ],
)
def test_rows_that_are_no_pairs_are_refused(broken, message):
    with pytest.raises(ValueError, match=message):
        broken()


# errors


def test_margins_that_the_data_does_not_have_are_an_error():
    with pytest.raises(ConfigError, match=r"margin = 'data', but the pairs have no margins"):
        evaluate(RewardModel(margin="data"), CHOSEN + REJECTED, batch_of())


def test_log_probabilities_alone_are_an_error():
    batch = batch_of()
    with pytest.raises(ConfigError, match="the forward pass gave no scores"):
        RewardModel().loss(torch.zeros(6, 2), batch, count_totals(batch))


@catalogue("margin", [True, -1.0, "column", NAN])
def test_a_margin_that_is_none_is_refused(margin):
    with pytest.raises(ConfigError, match=r"reward_model\.margin = .*; allowed: .* or 'data'\.\n  Change margin"):
        RewardModel(margin=margin)
