"""CISPO: worked numbers for both kinds of bound, a gradient on every token, and a refusal to mix the two kinds."""

from dataclasses import replace

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import CISPO, DPPO, VESPO
from posttrain.errors import ConfigError
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import weight_clip

RELATIVE = CISPO(max_ratio=None, clip_low=0.2, clip_high=0.2)


@catalogue(
    "algorithm, expected",
    [
        (RELATIVE, 0.01510332828),
        (CISPO(max_ratio=None, clip_high=0.2), 0.03540561536),
        (CISPO(max_ratio=1.2), 0.03540561536),
        (CISPO(), -0.2447252335),
    ],
    ids=["relative", "upper only", "the same bound, absolute", "default"],
)
def test_worked_loss(t, algorithm: CISPO, expected: float):
    loss, _ = algorithm.loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(expected, rel=1e-8)


def test_worked_gradient(t, assert_ragged):
    """The gradient is -w A / 10 on every token, even where PPO would have clipped."""
    logprobs_BT = t.logprobs_BT
    RELATIVE.loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    expected = [
        [-0.1261525316, -0.144, -0.1085804902],
        [0.056, 0.07736196427],
        [-0.0408080536, -0.032, -0.04647336971, -0.04],
        [0.18],
    ]
    assert_ragged(logprobs_BT.grad, expected)


def test_worked_trap(t):
    """If a user of TRL sets only its loss type, TRL caps every weight at 0.2. We refuse such a bound."""
    weight_BT = weight_clip(token_ratio(t.logprobs_BT, t.old_BT), None, 0.2)
    loss = token_mean(-weight_BT * t.advantages_BT * t.logprobs_BT, t.mask_BT, tokens=10)
    assert loss.item() == pytest.approx(-0.00016, rel=1e-8)


def test_the_share_of_bounded_weights(t):
    for algorithm, share in ((RELATIVE, 0.4), (CISPO(), 0.0), (CISPO(max_ratio=1.2), 0.2)):
        _, metrics = algorithm.loss(t.logprobs_BT, t.batch(), t.totals)
        assert float(metrics["policy/weight_clip_fraction"]) == pytest.approx(share)


def test_without_any_bound_the_weight_is_the_ratio(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    CISPO(max_ratio=None).loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    ratio_BT = token_ratio(t.logprobs_BT, t.old_BT).detach()
    torch.testing.assert_close(logprobs_BT.grad[t.mask_BT], (-ratio_BT * t.advantages_BT / 10)[t.mask_BT])


@catalogue("cls", [CISPO, VESPO, DPPO])
def test_an_automatic_correction_takes_the_weight_to_the_sampler_and_adds_no_other(t, cls: type):
    """These losses already use the ratio as a weight, so the correction adds no second weight."""
    sampled_BT = t.old_BT + 0.1
    batch = replace(t.batch(), sampling_logprobs_BT=sampled_BT)
    around_it = replace(t.batch(), old_logprobs_BT=sampled_BT)
    bypassed, plain = cls(correction=cls.auto_correction), cls()
    loss, _ = bypassed.loss(t.logprobs_BT, batch, t.totals)
    assert cls.auto_correction == "bypass"
    assert loss.item() == plain.loss(t.logprobs_BT, around_it, t.totals)[0].item()
    assert loss.item() != plain.loss(t.logprobs_BT, batch, t.totals)[0].item()


@catalogue("max_ratio", [0.2, 0.0, 0.99])
def test_an_absolute_bound_below_1_is_refused(max_ratio: float):
    with pytest.raises(
        ConfigError, match=rf"(?s)cispo.max_ratio = {max_ratio}, which would scale down.*clip_high = {max_ratio}"
    ):
        CISPO(max_ratio=max_ratio)


@catalogue("relative", [{"clip_high": 0.2}, {"clip_low": 0.2}, {"clip_low": 0.2, "clip_high": 0.2}])
def test_absolute_and_relative_bounds_at_once_are_refused(relative: dict):
    with pytest.raises(ConfigError, match=r"(?s)cispo.max_ratio = 5.0 .*with clip_low.*Set max_ratio = null"):
        CISPO(**relative)
