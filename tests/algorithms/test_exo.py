"""EXO: the worked number, its zero, and its relation to DPO."""

import math

import pytest
from tests.algorithms.preference_data import P_FLOAT32, P, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.exo import EXO
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(EXO(beta=0.1)) == pytest.approx(2.729745356, rel=1e-8)
    assert P_FLOAT32.loss(EXO(beta=0.1)) == pytest.approx(2.729745356, rel=1e-5)


def test_the_loss_is_0_where_the_preference_is_as_sure_as_the_smoothed_label():
    margin = math.log(0.9 / 0.1)
    step = one_pair(margin / 0.1, 0).evaluate(EXO(beta=0.1, label_smoothing=0.1))
    assert step.loss.item() == pytest.approx(0, abs=1e-12)
    assert step.gradient_BT[:, 1:].abs().max() == pytest.approx(0, abs=1e-12)


@catalogue("margin", [-2.0, 0.0, 3.0])
def test_it_is_the_kl_from_the_models_preference_to_the_label(margin):
    won = 1 / (1 + math.exp(-margin))
    expected = won * math.log(won / 0.99) + (1 - won) * math.log((1 - won) / 0.01)
    assert one_pair(10 * margin, 0).loss(EXO(beta=0.1, label_smoothing=0.01)) == pytest.approx(expected, rel=1e-9)


def test_a_hopeless_pair_has_no_gradient():
    step = one_pair(-1e4, 1e4).evaluate(EXO())
    assert step.loss.item() == pytest.approx(-math.log(1e-3), rel=1e-12)
    assert step.gradient_BT[:, 1:].abs().max() == 0


@catalogue("noise", [0, 0.5])
def test_a_target_of_0_or_of_a_coin_flip_is_refused(noise):
    with pytest.raises(ConfigError, match=r"exo.label_smoothing = .*allowed: (greater than 0|less than 0.5)"):
        EXO(label_smoothing=noise)
