"""SimPO: worked numbers, its limits, and its two ways to give the target margin."""

import math

import pytest
from tests.algorithms.preference_data import P_FLOAT32, P, PairFixture
from tests.catalogue import catalogue

from posttrain.algorithms.cpo import CPO
from posttrain.algorithms.simpo import SimPO
from posttrain.errors import ConfigError


def test_worked_losses():
    assert P.losses(SimPO(beta=2, gamma=1)) == pytest.approx([1.406150136, 0.6389841334], rel=1e-8)
    assert P.loss(SimPO(beta=2, gamma=1)) == pytest.approx(1.022567135, rel=1e-8)
    assert P_FLOAT32.loss(SimPO(beta=2, gamma=1)) == pytest.approx(1.022567135, rel=1e-5)


def test_worked_rewards():
    step = P.evaluate(SimPO(beta=2, gamma=1))
    assert step.metric("rewards/chosen") == pytest.approx(-2 - 2.03, rel=1e-8)
    assert step.metric("rewards/rejected") == pytest.approx(-1.9375 - 2.585714286, rel=1e-8)
    assert step.metric("rewards/accuracies") == 0.5


def test_worked_losses_of_alphapo():
    algorithm = SimPO(alpha=0.25, beta=2.5, gamma=0.1)
    assert P.losses(algorithm) == pytest.approx([0.8866772127, 0.08887256167], rel=1e-8)
    assert P.loss(algorithm) == pytest.approx(0.4877748872, rel=1e-8)


def test_worked_losses_with_label_smoothing():
    """The margins h = 2 (a(chosen) - a(rejected)) - 1 are -1.125 and 0.111428571. One tenth of the labels is wrong."""
    expected = [0.9 * softplus(-h) + 0.1 * softplus(h) for h in (-1.125, 2 * (2.585714286 - 2.03) - 1)]
    assert P.losses(SimPO(beta=2, gamma=1, label_smoothing=0.1)) == pytest.approx(expected, rel=1e-8)
    with pytest.raises(ConfigError, match=r"simpo.label_smoothing = 0.5; allowed: less than 0.5"):
        SimPO(label_smoothing=0.5)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_a_small_alpha_is_simpo():
    assert P.loss(SimPO(alpha=1e-9)) == pytest.approx(P.loss(SimPO()), rel=1e-7)


def test_without_a_target_and_with_one_length_it_is_cpo():
    """All answers have four tokens, so it equals CPO without likelihood and with beta / 4."""
    pairs = PairFixture([-3.0, -6.0], [-5.0, -2.0], [0, 0], [0, 0], [4, 4], [4, 4])
    assert pairs.loss(SimPO(beta=2, gamma=0)) == pytest.approx(pairs.loss(CPO(beta=0.5, alpha=0)), rel=1e-12)


def test_no_reference_is_needed():
    assert SimPO().needs == set()


@catalogue("given, target", [({}, 0.5), ({"beta": 10}, 2.5), ({"gamma": 1.6}, 1.6), ({"gamma_beta_ratio": 0.8}, 1.6)])
def test_the_target_margin_by_number_or_by_ratio(given, target):
    assert SimPO(**given).target_margin == pytest.approx(target)
    assert P.loss(SimPO(**given)) == P.loss(
        SimPO(**({"beta": 2} | given | {"gamma_beta_ratio": None, "gamma": target}))
    )


def test_both_ways_at_once_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)gamma = 0.5 and gamma_beta_ratio = 0.25; allowed: one.*gamma = 0.5"):
        SimPO(gamma=0.5, gamma_beta_ratio=0.25)
