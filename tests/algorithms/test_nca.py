"""NCA: the worked number, and that a pair of equal answers keeps the reward at 0."""

import math

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, one_pair

from posttrain.algorithms.nca import NCA
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(NCA(beta=0.1)) == pytest.approx(1.382787594, rel=1e-8)
    assert P_FLOAT32.loss(NCA(beta=0.1)) == pytest.approx(1.382787594, rel=1e-5)


def test_at_the_reference_the_loss_is_twice_log_2():
    assert AT_REFERENCE.loss(NCA()) == pytest.approx(2 * math.log(2), rel=1e-12)


def test_both_orders_of_a_pair_together_hold_both_rewards_at_0():
    pair = one_pair(0, 0)
    both_BT = pair.evaluate(NCA()).gradient_BT + pair.swapped().evaluate(NCA()).gradient_BT.flip(0)
    assert both_BT[:, 1:].abs().max() == pytest.approx(0, abs=1e-15)


def test_a_chosen_answer_far_up_is_pulled_back():
    """Its own term is bounded: sigmoid(s) = 2/3 is the optimum of -log s(s) - 1/2 log s(-s)."""
    top = math.log(2) / 0.1
    assert one_pair(top, 0).evaluate(NCA(beta=0.1)).gradient_BT[0, 1].item() == pytest.approx(0, abs=1e-12)
    assert one_pair(top + 1, 0).evaluate(NCA(beta=0.1)).gradient_BT[0, 1] > 0


def test_a_beta_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"nca.beta = 0; allowed: greater than 0"):
        NCA(beta=0)
