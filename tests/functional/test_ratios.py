"""Importance ratios and the clip: worked numbers of fixture T, the truth table, and log ratios of ±100."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.functional.masks import masked
from posttrain.functional.ratios import (
    clipped_surrogate,
    log_ratio,
    sequence_product_ratio,
    sequence_ratio,
    sequence_token_ratio,
    stopped_by_clip,
    token_ratio,
)


def test_token_ratios(t, assert_ragged):
    ratio_BT = masked(token_ratio(t.logprobs_BT, t.old_BT), t.mask_BT)
    assert_ragged(
        ratio_BT,
        [
            [1.051271096, 1.349858808, 0.904837418],
            [0.670320046, 1.105170918],
            [1.02020134, 0.7788007831, 1.161834243, 1],
            [3.669296668],
        ],
    )


def test_the_ratio_of_a_completion_is_the_product_of_its_token_ratios(t, assert_ragged):
    ratio_B1 = sequence_product_ratio(t.logprobs_BT, t.old_BT, t.mask_BT)
    assert_ragged(ratio_B1, [[1.284025417], [0.7408182207], [0.9231163464], [3.669296668]])


def test_the_geometric_mean_of_the_token_ratios(t, assert_ragged):
    """Every token of a completion has it as its ratio's value, but its gradient flows through that token alone."""
    geometric = [1.08690405, 0.8607079764, 0.9801986733, 3.669296668]
    logprobs_BT = t.logprobs_BT
    ratio_B1 = sequence_ratio(logprobs_BT, t.old_BT, t.mask_BT)
    assert_ragged(ratio_B1, [[s] for s in geometric])
    per_token_BT = masked(sequence_token_ratio(logprobs_BT, t.old_BT, t.mask_BT), t.mask_BT)
    everywhere = [[s] * int(n) for s, n in zip(geometric, t.mask_BT.sum(dim=-1), strict=True)]
    assert_ragged(per_token_BT, everywhere)
    (gradient_BT,) = torch.autograd.grad(per_token_BT.sum(), logprobs_BT, retain_graph=True)
    assert_ragged(masked(gradient_BT, t.mask_BT), everywhere)
    (gradient_BT,) = torch.autograd.grad(ratio_B1.sum(), logprobs_BT)
    assert_ragged(masked(gradient_BT, t.mask_BT), [[s / len(row) for s in row] for row in everywhere])


def test_a_completion_without_tokens_has_ratio_1():
    nan_BT, empty_BT = torch.full((1, 3), float("nan")), torch.zeros(1, 3, dtype=torch.bool)
    assert sequence_ratio(nan_BT, nan_BT, empty_BT).item() == 1
    assert sequence_product_ratio(nan_BT, nan_BT, empty_BT).item() == 1


def test_the_ratio_of_a_single_token_is_its_own_at_every_level(t):
    one_token = t.logprobs_BT[3:], t.old_BT[3:], t.mask_BT[3:]
    for ratio in (sequence_ratio, sequence_product_ratio, sequence_token_ratio):
        assert ratio(*one_token)[0, 0].item() == pytest.approx(3.669296668)


@catalogue("advantage", [1.0, 0.0, -1.0])
@catalogue("ratio", [0.7, 1.0, 1.5])
def test_what_is_said_to_be_stopped_has_no_gradient(ratio: float, advantage: float):
    u, a = torch.tensor(ratio, requires_grad=True), torch.tensor(advantage)
    (gradient,) = torch.autograd.grad(clipped_surrogate(u, a, 0.2, 0.2), u)
    assert stopped_by_clip(u, a, 0.2, 0.2).item() == (gradient.item() == 0 and advantage != 0)


def test_on_policy_the_ratio_is_one_and_carries_the_policy_gradient(t):
    """Without old log-probabilities the policy is its own anchor. Value and gradient are as if they had been passed."""
    for make in (
        token_ratio,
        lambda new, old: sequence_product_ratio(new, old, t.mask_BT),
        lambda new, old: sequence_token_ratio(new, old, t.mask_BT),
    ):
        gradients = []
        for old_BT in (None, t.logprobs_BT.detach()):
            logprobs_BT = t.logprobs_BT
            ratio = make(logprobs_BT, old_BT)
            valid = ratio[~ratio.isnan()]
            assert (valid == 1).all()
            gradients.append(torch.autograd.grad(valid.sum(), logprobs_BT)[0][t.mask_BT])
        assert torch.equal(gradients[0], gradients[1])
        assert (gradients[0] == 1).all()


@catalogue("dtype", [torch.float32, torch.float64])
@catalogue("difference", [100.0, -100.0, 1e4])
def test_a_log_ratio_out_of_bounds_is_finite_and_has_no_gradient(difference: float, dtype: torch.dtype):
    old_BT = torch.zeros(1, 3, dtype=dtype)
    logprobs_BT = torch.full_like(old_BT, difference).requires_grad_()
    everything = torch.ones(1, 3, dtype=torch.bool)
    ratio_BT = token_ratio(logprobs_BT, old_BT)
    product_B1 = sequence_product_ratio(logprobs_BT, old_BT, everything)
    geometric_B1 = sequence_ratio(logprobs_BT, old_BT, everything)
    per_token_BT = sequence_token_ratio(logprobs_BT, old_BT, everything)
    (ratio_BT.sum() + product_B1.sum() + geometric_B1.sum() + per_token_BT.sum()).backward()
    bound = 20.0 if difference > 0 else -20.0
    assert log_ratio(logprobs_BT, old_BT).tolist() == [[bound] * 3]
    assert ratio_BT.isfinite().all()
    assert product_B1.isfinite().all()
    assert logprobs_BT.grad is not None
    assert (logprobs_BT.grad == 0).all()


def test_no_gradient_reaches_the_old_policy():
    old_BT = torch.zeros(1, 2, requires_grad=True)
    token_ratio(torch.ones(1, 2, requires_grad=True), old_BT).sum().backward()
    assert old_BT.grad is None


@catalogue(
    "ratio, advantage, loss, gradient",
    [
        (0.7, +1.0, -0.7, -1.0),
        (1.0, +1.0, -1.0, -1.0),
        (1.5, +1.0, -1.2, 0.0),
        (0.7, -1.0, +0.8, 0.0),
        (1.0, -1.0, +1.0, +1.0),
        (1.5, -1.0, +1.5, +1.0),
        (4.0, -1.0, +4.0, +1.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_clip_stops_only_what_has_gone_too_far_in_its_own_direction(ratio, advantage, loss, gradient):
    """A gain has its gradient below and inside the band, but not above. A penalty has it inside and above."""
    u = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    value = clipped_surrogate(u, torch.tensor(advantage, dtype=torch.float64), 0.2, 0.2)
    value.backward()
    assert value.item() == pytest.approx(loss)
    assert u.grad is not None
    assert u.grad.item() == pytest.approx(gradient)


@catalogue(
    "ratio, advantage, loss, gradient",
    [
        (0.7, -1.0, 0.8, 0.0),
        (2.9, -1.0, 2.9, 1.0),
        (3.1, -1.0, 3.0, 0.0),
        (9.0, -2.0, 6.0, 0.0),
        (3.1, +1.0, -1.2, 0.0),
        (0.7, +1.0, -0.7, -1.0),
    ],
)
def test_the_dual_clip_stops_a_penalty_beyond_c(ratio, advantage, loss, gradient):
    u = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    value = clipped_surrogate(u, torch.tensor(advantage, dtype=torch.float64), 0.2, 0.2, dual_clip=3.0)
    value.backward()
    assert value.item() == pytest.approx(loss)
    assert u.grad is not None
    assert u.grad.item() == pytest.approx(gradient)


def test_the_bounds_are_two_settings():
    gain, penalty = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert clipped_surrogate(torch.tensor(1.5).double(), gain, 0.2, 0.28).item() == pytest.approx(-1.28)
    assert clipped_surrogate(torch.tensor(0.5).double(), penalty, 0.1, 0.28).item() == pytest.approx(0.9)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_at_ratio_one_all_clips_have_the_gradient_of_the_ratio(advantage: float):
    """This also holds for a band of width zero."""
    for clip, dual_clip in ((0.2, None), (0.2, 3.0), (0.0, None)):
        u = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        clipped_surrogate(u, torch.tensor(advantage, dtype=torch.float64), clip, clip, dual_clip).backward()
        assert u.grad is not None
        assert u.grad.item() == pytest.approx(-advantage)


def test_worked_example_per_token(t, assert_ragged):
    loss_BT = clipped_surrogate(token_ratio(t.logprobs_BT, t.old_BT), t.advantages_BT, 0.2, 0.2)
    assert_ragged(
        masked(loss_BT, t.mask_BT),
        [
            [-1.261525316, -1.44, -1.085804902],
            [0.56, 0.7736196427],
            [-0.408080536, -0.3115203132, -0.4647336971, -0.4],
            [5.503945001],
        ],
    )
