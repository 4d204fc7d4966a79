"""Scores and links of preference losses: worked numbers, limits, and numerical edge cases."""

import math

import pytest
import torch
from tests.algorithms.preference_data import P
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms.pairs import pairs_of
from posttrain.functional.preferences import (
    averaged,
    bradley_terry,
    divergence_score,
    hinge,
    log1mexp,
    log_odds,
    log_ratio_modulated,
    logistic,
    matched_by_rank,
    reverse_cross_entropy,
    shaped_reward,
    smoothed,
    summed,
    tail_weighted,
    unbiased_logistic,
)

LINKS = {
    "logistic": logistic,
    "cdpo": lambda h_N: smoothed(logistic, h_N, 0.1),
    "robust": lambda h_N: unbiased_logistic(h_N, 0.1),
    "hinge": hinge,
    "exo": lambda h_N: reverse_cross_entropy(h_N, 1e-3),
    "discopop": lambda h_N: log_ratio_modulated(h_N, 0.05),
}


def numbers(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


# log(1 - exp(a)) and odds


@catalogue(
    "a, exact",
    [
        (-1e-10, -23.02585093),
        (-0.001, -6.908255237),
        (-0.5, -0.9327521296),
        (-0.6931471806, -0.6931471806),
        (-1, -0.4586751454),
        (-5, -0.006760749449),
        (-50, -1.928749848e-22),
    ],
)
def test_worked_log1mexp(a, exact):
    assert log1mexp(numbers(a)).item() == pytest.approx(exact, rel=2e-9)  # the table is printed with ten digits
    assert log1mexp(numbers(a, dtype=torch.float32)).item() == pytest.approx(exact, rel=1e-5)


def test_float32_keeps_what_the_plain_formula_loses():
    """Near 0, exp(a) rounds to 1, and log(1 - exp(a)) is -inf."""
    a = numbers(-1e-10, -1e-8, dtype=torch.float32)
    assert torch.log(1 - torch.exp(a)).tolist() == [-math.inf, -math.inf]
    assert log1mexp(a).tolist() == pytest.approx([-23.0258503, -18.420681], rel=1e-6)
    a.requires_grad_()
    (gradient,) = torch.autograd.grad(log1mexp(a).sum(), a)  # here the branch that is not selected is -inf
    assert gradient.tolist() == pytest.approx([-1e10, -1e8], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odds_and_their_gradient_are_finite_everywhere(dtype):
    average = numbers(0, -1e-12, -1e-7, -1e-3, -0.69314718, -0.7, -50, -1e4, dtype=dtype).requires_grad_()
    odds = log_odds(average)
    (gradient,) = torch.autograd.grad(odds.sum(), average)
    assert odds.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient[:2].tolist() == [0, 0]  # a is clamped at -1e-7


@catalogue("p", [0.01, 0.3, 0.5, 0.9, 0.9999])
def test_log_odds_are_the_log_of_the_odds(p):
    average = numbers(math.log(p)).requires_grad_()
    assert log_odds(average).item() == pytest.approx(math.log(p / (1 - p)), rel=1e-9, abs=1e-12)
    (gradient,) = torch.autograd.grad(log_odds(average), average)
    assert gradient.item() == pytest.approx(1 / (1 - p), rel=1e-9)


# Links


@catalogue("link", LINKS.values(), ids=LINKS)
@catalogue("dtype", [torch.float32, torch.float64])
def test_links_are_finite_with_their_gradient_for_any_margin(link, dtype):
    h_N = numbers(-1e6, -1e3, -50, -1, 0, 1, 50, 1e3, 1e6, dtype=dtype).requires_grad_()
    loss_N = link(h_N)
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), h_N)
    assert loss_N.isfinite().all()
    assert gradient_N.isfinite().all()


@catalogue("link", LINKS.values(), ids=LINKS)
def test_gradients_of_links_agree_with_finite_differences(link):
    h_N = numbers(-30, -2, -0.31, -0.02, 0.02, 0.4, 0.9, 3, 30).requires_grad_()  # away from the hinge's kink
    (gradient_N,) = torch.autograd.grad(link(h_N).sum(), h_N)
    with torch.no_grad():
        difference_N = (link(h_N + 1e-6) - link(h_N - 1e-6)) / 2e-6
    torch.testing.assert_close(gradient_N, difference_N, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("link", ["logistic", "hinge", "discopop"])
def test_more_margin_is_less_loss(link):
    h_N = torch.linspace(-5, 5, 101, dtype=torch.float64)
    rising = LINKS[link](h_N).diff() > 0
    assert not rising.any() or link == "discopop"
    assert LINKS[link](h_N)[0] > LINKS[link](h_N)[-1]


def test_discopop_has_a_hill_near_0_where_it_is_not_convex():
    h_N = torch.linspace(-0.2, 0.2, 401, dtype=torch.float64)
    assert (log_ratio_modulated(h_N, 0.05).diff() > 0).any()
    assert (log_ratio_modulated(h_N, 0.05).diff().diff() < 0).any()


def test_slic_on_log_probabilities():
    """SLiC-HF with delta 1 on fixture P, without its likelihood term: max(0, 1 - S_w + S_l) gives 0 and 3.2."""
    chosen_N, rejected_N = pairs_of(P.logprobs_BT, P.batch).log_probs()
    assert hinge(chosen_N - rejected_N).tolist() == pytest.approx([0, 3.2], rel=1e-8)


def test_the_pairwise_classifier():
    """-log s(beta r_w) - log s(-beta r_l) on fixture P: BCO for pairs, without a shift."""
    chosen_N, rejected_N = 0.1 * pairs_of(P.logprobs_BT, P.batch).log_ratios()
    assert (logistic(chosen_N) + logistic(-rejected_N)).mean().item() == pytest.approx(1.377831361, rel=1e-8)


def test_bradley_terry_is_the_logistic_of_the_difference():
    chosen_N, rejected_N = numbers(1.0, -2.0), numbers(0.5, 3.0)
    torch.testing.assert_close(bradley_terry(chosen_N, rejected_N), logistic(chosen_N - rejected_N))


# Scores


def test_sums_of_half_precision_are_taken_in_float32():
    x_BT = torch.full((1, 4096), -1.0, dtype=torch.bfloat16)
    assert summed(x_BT, torch.ones(1, 4096, dtype=torch.bool)).dtype == torch.float32
    assert summed(x_BT, torch.ones(1, 4096, dtype=torch.bool)).item() == -4096


def test_an_empty_row_scores_0():
    x_BT, mask_BT = torch.full((1, 3), float("nan")), torch.zeros(1, 3, dtype=torch.bool)
    assert summed(x_BT, mask_BT).tolist() == averaged(x_BT, mask_BT).tolist() == [0]


def test_tokens_beyond_the_shorter_answer_are_weighed():
    """The trained tokens are counted, wherever they are."""
    mask_2NT = torch.tensor([[[0, 1, 0, 1, 1]], [[1, 1, 0, 0, 0]]]).bool()
    weighted_2NT = tail_weighted(torch.ones(2, 1, 5), mask_2NT, 0.5)
    assert weighted_2NT[mask_2NT].tolist() == [1, 1, 0.5, 1, 1]


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jensen_shannon", "alpha"])
def test_divergence_scores_rise_with_the_log_ratio_are_0_at_the_reference_and_finite(divergence):
    r = torch.linspace(-15, 15, 61, dtype=torch.float64)
    assert (divergence_score(r, divergence).diff() > 0).all()
    assert divergence_score(numbers(0), divergence).item() == pytest.approx(0, abs=1e-15)
    assert divergence_score(numbers(-1e4, 1e4), divergence).isfinite().all()


def test_near_the_reference_all_divergences_agree():
    r = numbers(-1e-6, 1e-6)
    for divergence in ("forward_kl", "alpha"):
        torch.testing.assert_close(divergence_score(r, divergence), r, rtol=1e-5, atol=0)
    torch.testing.assert_close(divergence_score(r, "jensen_shannon"), r / 2, rtol=1e-5, atol=0)


def test_a_shaped_reward_is_steeper_for_unlikely_answers():
    average = numbers(-4, -1, -0.1)
    torch.testing.assert_close(shaped_reward(average, 0.25), (1 - torch.exp(-0.25 * average)) / 0.25)
    assert shaped_reward(average, 0) is average
    assert shaped_reward(numbers(-1e5), 0.25).isfinite().all()


# Matching


@catalogue("seed", range(3))
def test_matching_by_rank_is_the_cheapest_transport(seed):
    """No exchange of two partners reduces the sum of squared distances."""
    generator = torch.Generator().manual_seed(seed)
    x_N, y_N = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    partner_N = matched_by_rank(x_N, y_N)
    torch.testing.assert_close(partner_N.sort().values, y_N.sort().values)
    cost_NN = (x_N[:, None] - partner_N).square()
    kept_NN = cost_NN.diagonal()[:, None] + cost_NN.diagonal()
    assert (cost_NN + cost_NN.T >= kept_NN - 1e-12).all()
