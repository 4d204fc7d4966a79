"""APO-zero: the worked number, and the direction in which each answer moves."""

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, one_pair

from posttrain.algorithms.apo_zero import APOZero
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(APOZero(beta=0.1)) == pytest.approx(0.9950057233, rel=1e-8)
    assert P_FLOAT32.loss(APOZero()) == pytest.approx(0.9950057233, rel=1e-5)


def test_at_the_reference_the_loss_is_1():
    assert AT_REFERENCE.loss(APOZero()) == pytest.approx(1, rel=1e-12)


def test_the_chosen_answer_rises_and_the_rejected_one_falls_whatever_the_other_does():
    near, far = one_pair(0, 0).evaluate(APOZero()), one_pair(0, 200).evaluate(APOZero())
    assert near.gradient_BT[:, 1].tolist() == [-0.025, 0.025]  # beta / 4
    assert far.gradient_BT[0, 1].item() == -0.025
    assert 0 < far.gradient_BT[1, 1].item() < 1e-9


def test_a_beta_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"apo_zero.beta = 0; allowed: greater than 0"):
        APOZero(beta=0)
