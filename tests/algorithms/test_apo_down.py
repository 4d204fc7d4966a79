"""APO-down: the worked number, and the direction in which each answer moves."""

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, one_pair

from posttrain.algorithms.apo_down import APODown
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(APODown(beta=0.1)) == pytest.approx(1.002518443, rel=1e-8)
    assert P_FLOAT32.loss(APODown()) == pytest.approx(1.002518443, rel=1e-5)


def test_at_the_reference_the_loss_is_1():
    assert AT_REFERENCE.loss(APODown()) == pytest.approx(1, rel=1e-12)


def test_at_the_reference_the_rejected_answer_falls_and_the_chosen_one_is_in_balance():
    step = AT_REFERENCE.evaluate(APODown())
    assert step.gradient_BT[:2, 1].abs().max() == pytest.approx(0, abs=1e-15)
    assert (step.gradient_BT[2:, 1] > 0).all()


def test_a_chosen_answer_that_is_ahead_falls():
    assert one_pair(5, -5).evaluate(APODown()).gradient_BT[0, 1] > 0


def test_a_beta_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"apo_down.beta = 0; allowed: greater than 0"):
        APODown(beta=0)
