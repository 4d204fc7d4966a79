"""IPO: worked numbers for both conventions, and its finite target."""

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, PairFixture, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.ipo import IPO
from posttrain.errors import ConfigError


def test_worked_losses_per_token():
    assert P.losses(IPO(tau=0.1)) == pytest.approx([22.52293403, 26.71413061], rel=1e-8)
    assert P.loss(IPO(tau=0.1)) == pytest.approx(24.61853232, rel=1e-8)
    assert P_FLOAT32.loss(IPO(tau=0.1)) == pytest.approx(24.61853232, rel=1e-5)


def test_worked_margins_per_token():
    """The logged reward is tau times the log-ratio."""
    step = P.evaluate(IPO(tau=0.1))
    assert step.metric("rewards/margins") / 0.1 == pytest.approx((0.2541666667 - 0.1685714286) / 2, rel=1e-8)


def test_worked_losses_of_sums():
    algorithm = IPO(tau=0.1, length_average=False)
    assert P.losses(algorithm) == pytest.approx([10.89, 39.69], rel=1e-8)
    assert P.loss(algorithm) == pytest.approx(25.29, rel=1e-8)


def test_at_the_reference_the_loss_is_the_squared_target():
    assert AT_REFERENCE.loss(IPO(tau=0.5)) == pytest.approx(1, rel=1e-12)


@catalogue("length_average", [True, False])
def test_a_margin_beyond_the_target_is_pulled_back(length_average):
    target = 1 / (2 * 0.25) * (4 if length_average else 1)  # for answers of four tokens
    at_it = one_pair(target, 0, length=4).evaluate(IPO(tau=0.25, length_average=length_average))
    assert at_it.loss.item() == pytest.approx(0, abs=1e-20)
    beyond = one_pair(target + 1, 0, length=4).evaluate(IPO(tau=0.25, length_average=length_average))
    assert (beyond.gradient_BT[0, 1:] > 0).all()


def test_with_single_tokens_both_conventions_agree():
    pair = PairFixture([-1.0], [-2.0], [-1.5], [-1.2], [1], [1])
    assert pair.loss(IPO()) == pair.loss(IPO(length_average=False))


def test_a_tau_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"ipo.tau = 0; allowed: greater than 0"):
        IPO(tau=0)
