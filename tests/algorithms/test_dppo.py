"""DPPO: which tokens of the fixture it bounds. The bound is on the probability and not on the ratio."""

import math

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import DPPO
from posttrain.errors import ConfigError
from posttrain.functional.ratios import token_ratio
from posttrain.types import Batch, count_totals

TV = [
    [0.03109749191, 0.1053754478, -0.07049817465],
    [-0.04461732995, 0.0522263323],
    [0.01827892835, -0.0493562167, 0.065796893, 0],
    [0.3268725359],
]
"""p - p_old of the fixture, where A = [1.2, -0.7, 0.4, -1.5]."""


@catalogue(
    "settings, stopped",
    [
        ({}, []),
        ({"divergence_low": 0.04, "divergence_high": 0.04}, [(0, 1), (1, 0), (2, 2)]),
        ({"divergence_low": 0.04, "divergence_high": 1.0}, [(1, 0)]),
        ({"divergence_low": 1.0, "divergence_high": 0.1}, [(0, 1)]),
        ({"divergence": "kl", "divergence_low": 0.01, "divergence_high": 0.01}, [(0, 1), (1, 0)]),
        ({"divergence": "kl", "divergence_low": 0.01, "divergence_high": 0.008}, [(0, 1), (1, 0), (2, 2)]),
    ],
)
def test_worked_masks_and_gradients(t, assert_ragged, settings: dict, stopped: list[tuple[int, int]]):
    """The gradient is -min(rho, 20) A / 10 on every token that has not moved too far outward. The last token rose
    against the sign of its advantage."""
    logprobs_BT = t.logprobs_BT
    loss, metrics = DPPO(**settings).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    weight_BT = token_ratio(t.logprobs_BT, t.old_BT).detach()
    for b, s in stopped:
        weight_BT[b, s] = 0
    expected_BT = -weight_BT * t.advantages_BT / 10
    torch.testing.assert_close(logprobs_BT.grad[t.mask_BT], expected_BT[t.mask_BT], rtol=1e-10, atol=0)
    value = (expected_BT * t.logprobs_BT)[t.mask_BT].sum().item()
    assert loss.item() == pytest.approx(value, rel=1e-10)
    assert float(metrics["clip_ratio/region_mean"]) == pytest.approx(len(stopped) / 10)


def test_worked_share_out_of_band(t):
    _, metrics = DPPO(divergence_low=0.045, divergence_high=0.05).loss(t.logprobs_BT, t.batch(), t.totals)
    moved = [x for row in TV for x in row]
    share = sum(x < -0.045 or x > 0.05 for x in moved) / 10
    assert float(metrics["policy/out_of_band"]) == pytest.approx(share)


def test_the_weight_has_a_bound(t):
    logprobs_BT = t.logprobs_BT
    _, metrics = DPPO(max_ratio=1.3).loss(logprobs_BT, t.batch(), t.totals)
    assert float(metrics["policy/weight_clip_fraction"]) == pytest.approx(0.2)
    DPPO(max_ratio=1.3).loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    assert logprobs_BT.grad[3, 0].item() == pytest.approx(1.3 * 1.5 / 10)


def test_a_rare_token_may_become_a_hundred_times_as_likely_but_a_likely_one_may_not_lose_much():
    """A bound on the ratio is wrong in both cases."""
    old, new = torch.tensor([[1e-5], [0.99]]).log(), torch.tensor([[1e-3], [0.75]]).log()
    batch = Batch(
        completion_mask_BT=torch.ones(2, 1, dtype=torch.bool),
        advantages_BT=torch.tensor([[1.0], [-1.0]]),
        old_logprobs_BT=old,
        groups_B=torch.zeros(2, dtype=torch.long),
    )
    logprobs_BT = new.requires_grad_()
    DPPO(max_ratio=1000.0).loss(logprobs_BT, batch, count_totals(batch))[0].backward()
    assert logprobs_BT.grad.flatten().tolist() == pytest.approx([-100 / 2, 0], rel=1e-4)


def test_a_probability_that_rounds_to_1_is_finite():
    logprobs_BT = torch.zeros(1, 1, requires_grad=True)
    batch = Batch(
        completion_mask_BT=torch.tensor([[True]]),
        advantages_BT=torch.tensor([[1.0]]),
        old_logprobs_BT=torch.tensor([[math.log(0.5)]]),
        groups_B=torch.tensor([0]),
    )
    for kind in ("tv", "kl"):
        loss, _ = DPPO(divergence=kind).loss(logprobs_BT, batch, count_totals(batch))
        assert torch.autograd.grad(loss, logprobs_BT)[0].item() == 0


def test_an_unknown_divergence_is_refused():
    with pytest.raises(ConfigError, match=r"dppo.divergence = 'js'; allowed: 'tv' or 'kl'"):
        DPPO(divergence="js")
