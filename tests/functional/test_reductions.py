"""Aggregations A1, A3, A4 and A5: worked numbers, denominators of the whole step, and empty rows."""

import pytest
import torch

from posttrain.functional.masks import masked
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import fixed_length_mean, sequence_mean, sequence_sum, token_mean

NLLS = [[0.5, 1.2, 0.3], [2.0, 0.7], [0.1, 1.5, 0.9, 0.4, 0.6]]
NAN = float("nan")


def matrix(ragged: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows padded with nan, and the mask."""
    longest = max(map(len, ragged))
    x_BT = torch.tensor([[*row, *[NAN] * (longest - len(row))] for row in ragged], dtype=torch.float64)
    return x_BT, ~x_BT.isnan()


def test_token_mean_weighs_every_token_the_same():
    assert token_mean(*matrix(NLLS), tokens=10).item() == pytest.approx(0.82, rel=1e-8)


def test_sequence_mean_weighs_every_row_the_same():
    assert sequence_mean(*matrix(NLLS), sequences=3).item() == pytest.approx(0.9055555556, rel=1e-8)


def test_means_of_micro_batches_would_have_been_something_else():
    """The mean of the means of {row 1} and {rows 2, 3} weights the short batch more than the step's tokens do."""
    one, others = matrix(NLLS[:1]), matrix(NLLS[1:])
    means = (token_mean(*one, tokens=3) + token_mean(*others, tokens=7)) / 2
    assert means.item() == pytest.approx(0.7761904762, rel=1e-8)
    split = token_mean(*one, tokens=10) + token_mean(*others, tokens=10)
    assert split.item() == pytest.approx(0.82, rel=1e-12)


def test_reinforce_example(t):
    x_BT, mask_BT = -t.advantages_BT * t.logprobs_BT, t.mask_BT
    assert token_mean(x_BT, mask_BT, tokens=10).item() == pytest.approx(-0.0008, rel=1e-8)
    assert sequence_sum(x_BT, mask_BT, sequences=4).item() == pytest.approx(-0.002, rel=1e-8)


def test_weight_of_one_token():
    """The weights are 1 / tokens for A1, 1 / (N T_i) for A3, 1 / N for A4 and 1 / (N C) for A5."""
    x_BT, mask_BT = matrix(NLLS)
    weights = {}
    for name, reduce in {
        "A1": lambda x: token_mean(x, mask_BT, tokens=10),
        "A3": lambda x: sequence_mean(x, mask_BT, sequences=3),
        "A4": lambda x: sequence_sum(x, mask_BT, sequences=3),
        "A5": lambda x: fixed_length_mean(x, mask_BT, sequences=3, length=8),
    }.items():
        leaf_BT = x_BT.clone().requires_grad_()
        reduce(leaf_BT).backward()
        assert leaf_BT.grad is not None
        assert (leaf_BT.grad[~mask_BT] == 0).all()
        weights[name] = leaf_BT.grad[:, 0].tolist()
    assert weights["A1"] == pytest.approx([1 / 10] * 3)
    assert weights["A3"] == pytest.approx([1 / 9, 1 / 6, 1 / 15])
    assert weights["A4"] == pytest.approx([1 / 3] * 3)
    assert weights["A5"] == pytest.approx([1 / 24] * 3)


def test_with_equal_lengths_they_differ_by_a_constant():
    x_BT, mask_BT = matrix([[0.5, 1.2], [2.0, 0.7], [0.1, 1.5]])
    mean = token_mean(x_BT, mask_BT, tokens=6).item()
    assert sequence_mean(x_BT, mask_BT, sequences=3).item() == pytest.approx(mean)
    assert sequence_sum(x_BT, mask_BT, sequences=3).item() == pytest.approx(2 * mean)
    assert fixed_length_mean(x_BT, mask_BT, sequences=3, length=8).item() == pytest.approx(2 * mean / 8)


def test_an_empty_row_adds_nothing():
    x_BT, mask_BT = matrix([*NLLS, [NAN, NAN]])
    assert sequence_mean(x_BT, mask_BT, sequences=3).item() == pytest.approx(0.9055555556, rel=1e-8)
    assert sequence_mean(x_BT, mask_BT, sequences=4).item() == pytest.approx(0.9055555556 * 3 / 4, rel=1e-8)


def test_an_all_masked_batch_is_zero_with_zero_gradient():
    x_BT = torch.full((2, 3), NAN, dtype=torch.float64, requires_grad=True)
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    total = (
        token_mean(x_BT, mask_BT, tokens=0)
        + sequence_mean(x_BT, mask_BT, sequences=0)
        + sequence_sum(x_BT, mask_BT, sequences=0)
        + fixed_length_mean(x_BT, mask_BT, sequences=0, length=8)
    )
    total.backward()
    assert total.item() == 0
    assert x_BT.grad is not None
    assert (x_BT.grad == 0).all()


# Worked example: the clipped policy loss of fixture T under every aggregation


def clipped_loss_BT(t, logprobs_BT: torch.Tensor, dual_clip: float | None = None) -> torch.Tensor:
    return clipped_surrogate(token_ratio(logprobs_BT, t.old_BT), t.advantages_BT, 0.2, 0.2, dual_clip)


def test_the_clipped_loss_under_every_aggregation(t):
    loss_BT, mask_BT = clipped_loss_BT(t, t.logprobs_BT), t.mask_BT
    assert token_mean(loss_BT, mask_BT, tokens=10).item() == pytest.approx(0.146589988, rel=1e-8)
    assert token_mean(loss_BT, mask_BT, tokens=1).item() == pytest.approx(1.46589988, rel=1e-8)  # A2, the plain sum
    assert sequence_mean(loss_BT, mask_BT, sequences=4).item() == pytest.approx(1.128056945, rel=1e-8)
    assert sequence_sum(loss_BT, mask_BT, sequences=4).item() == pytest.approx(0.3664749701, rel=1e-8)
    assert fixed_length_mean(loss_BT, mask_BT, sequences=4, length=8).item() == pytest.approx(0.04580937126, rel=1e-8)


def test_the_gradient_of_the_token_mean(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    inside_BT = masked(logprobs_BT, t.mask_BT)
    token_mean(clipped_loss_BT(t, inside_BT), t.mask_BT, tokens=10).backward()
    assert_ragged(
        logprobs_BT.grad,
        [
            [-0.1261525316, 0, -0.1085804902],
            [0, 0.07736196427],
            [-0.0408080536, -0.03115203132, -0.04647336971, -0.04],
            [0.5503945001],
        ],
    )


def test_the_dual_clip_under_the_token_mean(t):
    loss_BT = clipped_loss_BT(t, t.logprobs_BT, dual_clip=3.0)
    assert token_mean(loss_BT, t.mask_BT, tokens=10).item() == pytest.approx(0.0461954879, rel=1e-8)


def test_a_masked_row_leaves_the_numerator_and_may_stay_in_the_denominator(t):
    """Row 4 is masked. By default it leaves the count. `sequences=4` counts it, like TRL and verl."""
    loss_BT, mask_BT = clipped_loss_BT(t, t.logprobs_BT), t.mask_BT
    mask_BT[3] = False
    assert token_mean(loss_BT, mask_BT, tokens=9).item() == pytest.approx(-0.4486716801, rel=1e-8)
    for sequences, per_token, constant in ((3, -0.330572407, -0.16825188), (4, -0.2479293053, -0.12618891)):
        assert sequence_mean(loss_BT, mask_BT, sequences).item() == pytest.approx(per_token, rel=1e-8)
        assert fixed_length_mean(loss_BT, mask_BT, sequences, length=8).item() == pytest.approx(constant, rel=1e-8)
