"""Robust DPO: worked numbers, and that it is unbiased."""

import pytest
from tests.algorithms.preference_data import P_FLOAT32, P, one_pair

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.robust_dpo import RobustDPO
from posttrain.errors import ConfigError

NOISY = RobustDPO(beta=0.1, label_smoothing=0.1)


def test_worked_losses():
    assert P.losses(NOISY) == pytest.approx([0.5905053389, 0.7765081947], rel=1e-8)
    assert P.loss(NOISY) == pytest.approx(0.6835067668, rel=1e-8)
    assert P_FLOAT32.loss(NOISY) == pytest.approx(0.6835067668, rel=1e-5)


def test_without_noise_it_is_dpo():
    assert P.loss(RobustDPO(beta=0.1, label_smoothing=0)) == P.loss(DPO(beta=0.1))


def test_averaged_over_flipped_labels_it_is_the_clean_loss():
    """The probability that a label is flipped is 0.1."""
    for pair in (one_pair(3.0, -1.0), one_pair(-20.0, 4.0)):
        expected = 0.9 * pair.loss(NOISY) + 0.1 * pair.swapped().loss(NOISY)
        assert expected == pytest.approx(pair.loss(DPO(beta=0.1)), rel=1e-12)


def test_it_has_no_lower_bound():
    assert one_pair(1e4, 0).loss(NOISY) < -100


def test_a_coin_flip_is_refused():
    with pytest.raises(ConfigError, match=r"robust_dpo.label_smoothing = 0.5; allowed: less than 0.5"):
        RobustDPO(label_smoothing=0.5)
