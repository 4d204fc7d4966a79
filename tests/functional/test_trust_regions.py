"""Trust regions besides the clip: worked numbers of fixture T, tokens that keep their gradient, random choices."""

import math

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.functional.masks import masked
from posttrain.functional.ratios import log_ratio, sequence_product_ratio, token_ratio
from posttrain.functional.trust_regions import (
    clip_cov,
    covariance,
    divergence,
    divergence_mask,
    kernel,
    kl_cov,
    log_clip,
    moved_too_far,
    random_numbers,
    soft_gate,
    weight_clip,
)

COVARIANCE = [
    [0.39091, -0.04559, 0.43941],
    [1.43871, -0.23529],
    [0.13141, -0.15249, 0.01751, 0.07701],
    [-0.09169],
]


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def gradient(loss: torch.Tensor, of: torch.Tensor) -> float:
    found = torch.autograd.grad(loss, of, allow_unused=True)[0]
    return 0.0 if found is None else found.item()


# Truth table: in which of the three places (below, inside and above the band) is there a gradient?

LOW, INSIDE, HIGH = 0.5, 1.0, 1.6


@catalogue("advantage, on", [(+1.0, {LOW, INSIDE}), (-1.0, {INSIDE, HIGH})])
@catalogue("ratio", [LOW, INSIDE, HIGH])
def test_the_log_clip_stops_what_the_clip_stops(ratio: float, advantage: float, on: set[float]):
    d = scalar(math.log(ratio))
    z = log_clip(d, torch.tensor(advantage), 0.2, 0.2)
    assert gradient(z, d) == (ratio in on)
    assert z.item() == pytest.approx(math.log(ratio) if ratio in on else 0.2 * (1 if ratio == HIGH else -1))


@catalogue("advantage, on", [(+1.0, {LOW, INSIDE}), (-1.0, {INSIDE, HIGH})])
@catalogue("ratio", [LOW, INSIDE, HIGH])
@catalogue("kind", ["tv", "kl"])
def test_the_divergence_mask_stops_what_moves_outward_only(ratio: float, advantage: float, on: set[float], kind):
    old = torch.tensor(0.4).log()
    kept = divergence_mask(old + math.log(ratio), old, torch.tensor(advantage), low=0.02, high=0.02, kind=kind)
    assert kept.item() == (ratio in on)


@catalogue("advantage", [+1.0, -1.0])
@catalogue("ratio", [LOW, INSIDE, HIGH])
def test_a_weight_never_stops_a_gradient_and_has_none(ratio: float, advantage: float):
    u = scalar(ratio)
    assert weight_clip(u, 0.8, 1.2).item() == pytest.approx({LOW: 0.8, INSIDE: 1.0, HIGH: 1.2}[ratio])
    assert not weight_clip(u, 0.8, 1.2).requires_grad
    phi = kernel(u, torch.tensor(advantage), k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0)
    assert phi.item() > 0
    assert not phi.requires_grad


@catalogue("advantage, tau", [(+1.0, 1.0), (-1.0, 1.05)])
@catalogue("ratio", [LOW, INSIDE, HIGH])
def test_the_gate_has_the_slope_4p_1_minus_p(ratio: float, advantage: float, tau: float):
    u = scalar(ratio)
    p = 1 / (1 + math.exp(-tau * (ratio - 1)))
    gate = soft_gate(u, torch.tensor(advantage), tau_pos=1.0, tau_neg=1.05)
    assert gate.item() == pytest.approx(4 / tau * p, rel=1e-12)
    assert gradient(gate, u) == pytest.approx(4 * p * (1 - p), rel=1e-12)


# Worked numbers


def test_worked_gates(t, assert_ragged):
    gate_BT = soft_gate(token_ratio(t.logprobs_BT, t.old_BT), t.advantages_BT, tau_pos=1.0, tau_neg=1.05)
    expected = [
        [2.051259868, 2.346333359, 1.904909168],
        [1.578335089, 2.009826076],
        [2.020200653, 1.779698315, 2.161481958, 2],
        [3.591713783],
    ]
    assert_ragged(masked(gate_BT, t.mask_BT), expected)


def test_worked_kernel(t, assert_ragged):
    q_B1 = sequence_product_ratio(t.logprobs_BT, t.old_BT, t.mask_BT)
    phi_B1 = kernel(q_B1, t.advantages_BT[:, :1], k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0)
    assert_ragged(phi_B1, [[0.7032264989], [0.6827432253], [1.073206569], [0.2372612711]])


@catalogue("advantage", [+1.0, 0.0, -1.0])
def test_the_kernel_is_1_at_1_and_falls_to_0_on_both_sides(advantage: float):
    settings = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
    a = torch.tensor(advantage)
    assert kernel(scalar(1.0), a, **settings).item() == 1
    k, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    for far in (1e-12, 1e-8):  # below 1e-8 nothing changes any more
        assert kernel(scalar(far), a, **settings).item() == pytest.approx(math.exp(decay) * 1e-8**k, rel=1e-6)
    assert kernel(torch.tensor(math.exp(20)), a, **settings).item() == 0


def test_worked_divergences(t, assert_ragged):
    tv = [
        [0.03109749191, 0.1053754478, 0.07049817465],
        [0.04461732995, 0.0522263323],
        [0.01827892835, 0.0493562167, 0.065796893, 0],
        [0.3268725359],
    ]
    kl = [
        [0.002068685923, 0.02386365463, 0.011724585],
        [0.01062979921, 0.005480160742],
        [0.002200812371, 0.007930782762, 0.008753309652, 0],
        [0.2497322964],
    ]
    for kind, expected in (("tv", tv), ("kl", kl)):
        assert_ragged(masked(divergence(t.logprobs_BT, t.old_BT, kind), t.mask_BT), expected)
    fallen_BT, risen_BT = moved_too_far(t.logprobs_BT, t.old_BT, low=0.05, high=0.05)
    assert fallen_BT[t.mask_BT].tolist() == [False, False, True, *[False] * 7]
    assert risen_BT[t.mask_BT].tolist() == [False, True, False, False, True, False, False, True, False, True]


@catalogue("dtype", [torch.float32, torch.float64])
@catalogue("logprob, old", [(0.0, -1.0), (-1.0, 0.0), (100.0, -1.0), (-100.0, -1.0), (-1.0, -100.0)])
def test_divergences_are_finite_where_a_probability_is_0_or_1(logprob: float, old: float, dtype: torch.dtype):
    for kind in ("tv", "kl"):
        assert divergence(torch.tensor(logprob, dtype=dtype), torch.tensor(old, dtype=dtype), kind).isfinite()


def test_without_an_old_policy_nothing_has_moved(t):
    assert divergence_mask(t.logprobs_BT, None, t.advantages_BT, low=0.0, high=0.0).all()


@catalogue("dtype", [torch.float32, torch.float64])
@catalogue("difference", [100.0, -100.0])
def test_a_log_ratio_of_100_is_finite_with_a_finite_gradient(difference: float, dtype: torch.dtype):
    old_BT = torch.full((1, 2), -101.0, dtype=dtype)
    logprobs_BT = (old_BT + difference).requires_grad_()
    for advantage in (1.0, -1.0):
        a_BT, mask_BT = torch.full_like(old_BT, advantage), torch.ones(1, 2, dtype=torch.bool)
        u_BT, q_B1 = token_ratio(logprobs_BT, old_BT), sequence_product_ratio(logprobs_BT, old_BT, mask_BT)
        loss = soft_gate(u_BT, a_BT, 1.0, 1.05).sum() + log_clip(log_ratio(logprobs_BT, old_BT), a_BT, 0.4, 0.4).sum()
        phi_BT = kernel(q_B1, a_BT, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0)
        loss = loss + ((phi_BT + weight_clip(u_BT, None, 5.0)) * logprobs_BT).sum()
        assert loss.isfinite()
        assert torch.autograd.grad(loss, logprobs_BT)[0].isfinite().all()


# Tokens chosen among all


def test_worked_covariances(t, assert_ragged):
    covariance_BT = covariance(t.logprobs_BT, t.advantages_BT, t.mask_BT)
    assert_ragged(covariance_BT, COVARIANCE)
    assert covariance_BT.sum().item() / 10 == pytest.approx(0.19699, rel=1e-8)
    assert not covariance_BT.requires_grad


def test_the_two_largest_of_ten_covariances_are_held(t):
    chosen_BT = kl_cov(covariance(t.logprobs_BT, t.advantages_BT, t.mask_BT), t.mask_BT, 0.2, torch.zeros(4, 4))
    assert chosen_BT.nonzero().tolist() == [[0, 2], [1, 0]]


@catalogue("share, number", [(0.0, 1), (0.05, 1), (0.2, 2), (0.39, 3), (1.0, 10)])
def test_a_share_of_the_tokens_is_chosen_and_at_least_one(t, share: float, number: int):
    """This also holds if all covariances are 0, because the advantages are equal."""
    draw_BT = random_numbers(torch.arange(4), 0, columns=4, seed=0)
    for covariance_BT in (covariance(t.logprobs_BT, t.advantages_BT, t.mask_BT), torch.zeros(4, 4)):
        chosen_BT = kl_cov(covariance_BT, t.mask_BT, share, draw_BT)
        assert chosen_BT.sum() == number
        assert (chosen_BT <= t.mask_BT).all()


def test_clip_cov_draws_from_tokens_between_its_bounds_that_are_not_stopped_already(t):
    covariance_BT = covariance(t.logprobs_BT, t.advantages_BT, t.mask_BT)
    drawn = set()
    for seed in range(50):
        draw_BT = random_numbers(torch.arange(4), 0, columns=4, seed=seed)
        free_BT = torch.ones_like(t.mask_BT)
        free_BT[0, 2] = False
        chosen_BT = clip_cov(covariance_BT, free_BT, t.mask_BT, cov_low=0.05, cov_high=1.0, share=0.1, draw_BT=draw_BT)
        assert chosen_BT.sum() == 1
        drawn.add(tuple(chosen_BT.nonzero()[0].tolist()))
    assert drawn == {(0, 0), (2, 0), (2, 3)}


def test_fewer_candidates_than_asked_for_are_all_chosen(t):
    covariance_BT = covariance(t.logprobs_BT, t.advantages_BT, t.mask_BT)
    draw_BT = random_numbers(torch.arange(4), 0, columns=4, seed=0)
    everyone = torch.ones_like(t.mask_BT)
    bounds = {"cov_low": 1.0, "cov_high": 5.0, "draw_BT": draw_BT}
    assert clip_cov(covariance_BT, everyone, t.mask_BT, share=1.0, **bounds).nonzero().tolist() == [[1, 0]]
    assert not clip_cov(covariance_BT / 100, everyone, t.mask_BT, share=1.0, **bounds).any()
    assert not clip_cov(covariance_BT, everyone, everyone & False, share=1.0, **bounds).any()


@catalogue("choose", ["largest", "draw"])
def test_neither_the_order_of_the_rows_nor_padding_changes_the_choice(choose: str):
    generator = torch.Generator().manual_seed(0)
    covariance_BT = torch.randint(0, 4, (6, 9), generator=generator).double()  # with many ties
    mask_BT = torch.rand(6, 9, generator=generator) < 0.7
    rows_B, order = torch.arange(100, 106), torch.tensor([3, 0, 5, 1, 4, 2])

    def chosen(values_BT: torch.Tensor, mask_BT: torch.Tensor, rows_B: torch.Tensor) -> torch.Tensor:
        draw_BT = random_numbers(rows_B, 0, columns=values_BT.shape[1], seed=1)
        if choose == "largest":
            return kl_cov(values_BT, mask_BT, 0.2, draw_BT)
        return clip_cov(values_BT, mask_BT, mask_BT, cov_low=0.5, cov_high=2.5, share=0.2, draw_BT=draw_BT)

    once_BT = chosen(covariance_BT, mask_BT, rows_B)
    assert once_BT.sum() == int(0.2 * mask_BT.sum())
    assert torch.equal(chosen(covariance_BT[order], mask_BT[order], rows_B[order]), once_BT[order])
    wide_BT, wide_mask_BT = (torch.nn.functional.pad(x, (0, 3)) for x in (covariance_BT, mask_BT))
    assert torch.equal(chosen(wide_BT, wide_mask_BT, rows_B)[:, :9], once_BT)


def test_random_numbers_are_even_and_their_own_for_each_seed_step_row_and_position():
    rows_B = torch.arange(200)
    numbers_BT = random_numbers(rows_B, 3, columns=100, seed=0)
    assert numbers_BT.min() >= 0
    assert numbers_BT.max() < 2**32
    share_of_each_tenth = (numbers_BT.double() / 2**32).flatten().histc(10, min=0, max=1) / numbers_BT.numel()
    assert share_of_each_tenth.tolist() == pytest.approx([0.1] * 10, abs=0.01)
    for step, seed in ((4, 0), (3, 1)):
        others_BT = random_numbers(rows_B, step, columns=100, seed=seed)
        assert not (others_BT == numbers_BT).any()
    steps_BT = torch.full((200, 100), 3)
    assert torch.equal(numbers_BT, random_numbers(rows_B, steps_BT, columns=100, seed=0))
