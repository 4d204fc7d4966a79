"""SPPO: the worked number and its two targets."""

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, one_pair

from posttrain.algorithms.sppo import SPPO
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(SPPO(beta=0.1)) == pytest.approx(49.23, rel=1e-8)
    assert P_FLOAT32.loss(SPPO(beta=0.1)) == pytest.approx(49.23, rel=1e-5)


def test_at_the_reference_the_loss_is_both_targets_squared():
    assert AT_REFERENCE.loss(SPPO(beta=0.001)) == pytest.approx(2 * 500**2, rel=1e-12)


def test_each_answer_has_its_own_target():
    step = one_pair(5, -5).evaluate(SPPO(beta=0.1))
    assert step.loss.item() == pytest.approx(0, abs=1e-20)
    assert step.gradient_BT[:, 1:].abs().max() == pytest.approx(0, abs=1e-12)
    assert one_pair(5, 2).evaluate(SPPO(beta=0.1)).gradient_BT[0, 1].item() == pytest.approx(0, abs=1e-12)


def test_a_beta_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"sppo.beta = 0; allowed: greater than 0"):
        SPPO(beta=0)
