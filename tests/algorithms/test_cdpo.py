"""cDPO: worked numbers, its limit, and the position of its minimum."""

import math

import pytest
import torch
from tests.algorithms.preference_data import P_FLOAT32, P, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.cdpo import CDPO
from posttrain.algorithms.dpo import DPO
from posttrain.errors import ConfigError


def test_worked_losses():
    assert P.losses(CDPO(label_smoothing=0.1)) == pytest.approx([0.6287553389, 0.7472581947], rel=1e-8)
    assert P.loss(CDPO(label_smoothing=0.1)) == pytest.approx(0.6880067668, rel=1e-8)
    assert P_FLOAT32.loss(CDPO(label_smoothing=0.1)) == pytest.approx(0.6880067668, rel=1e-5)


def test_without_noise_it_is_dpo():
    assert P.loss(CDPO(label_smoothing=0)) == P.loss(DPO())


@catalogue("noise", [0.1, 0.3])
def test_the_least_loss_is_where_the_preference_is_as_sure_as_the_labels(noise):
    margin = math.log((1 - noise) / noise)  # sigmoid(margin) = 1 - noise
    at_it = one_pair(margin / 0.1, 0).evaluate(CDPO(beta=0.1, label_smoothing=noise))
    assert at_it.gradient_BT[:, 1:].abs().max() == pytest.approx(0, abs=1e-15)
    beyond = one_pair(margin / 0.1 + 1, 0).evaluate(CDPO(beta=0.1, label_smoothing=noise))
    assert beyond.loss > at_it.loss
    assert torch.sign(beyond.gradient_BT[0, 1]) == 1


def test_a_coin_flip_is_refused():
    with pytest.raises(ConfigError, match=r"cdpo.label_smoothing = 0.5; allowed: less than 0.5"):
        CDPO(label_smoothing=0.5)
