"""DiscoPOP: the worked number, its two terms, and that neither overflows."""

import math

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.discopop import DiscoPOP
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(DiscoPOP(beta=0.1, tau=0.05)) == pytest.approx(0.8113035659, rel=1e-8)
    assert P_FLOAT32.loss(DiscoPOP(beta=0.1)) == pytest.approx(0.8113035659, rel=1e-5)


def test_at_the_reference_both_sides_weigh_half():
    assert AT_REFERENCE.loss(DiscoPOP()) == pytest.approx((math.log(2) + 1) / 2, rel=1e-12)


@catalogue("margin, expected", [(-3.0, math.log1p(math.exp(3.0))), (3.0, math.exp(-3.0))])
def test_wrong_pairs_are_logistic_and_right_ones_exponential(margin, expected):
    assert one_pair(20 * margin, 0).loss(DiscoPOP(beta=0.05)) == pytest.approx(expected, rel=1e-12)


@catalogue("log_ratio", [1e5, -1e5])
def test_no_product_of_0_and_infinity(log_ratio):
    step = one_pair(log_ratio, 0).evaluate(DiscoPOP())
    assert step.loss.item() == pytest.approx(max(0, -0.05 * log_ratio))
    assert step.gradient_BT[:, 1:].isfinite().all()


def test_with_noisy_labels_the_other_order_counts_too():
    pair = one_pair(7, 2)
    expected = 0.75 * pair.loss(DiscoPOP()) + 0.25 * pair.swapped().loss(DiscoPOP())
    assert pair.loss(DiscoPOP(label_smoothing=0.25)) == pytest.approx(expected, rel=1e-12)


def test_a_tau_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"discopop.tau = 0; allowed: greater than 0"):
        DiscoPOP(tau=0)
