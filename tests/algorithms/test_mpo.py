"""MPO: the sum of a preference term, a quality term for each answer, and the likelihood of the chosen answer."""

import math

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.mpo import MPO
from posttrain.errors import ConfigError


def test_worked_losses():
    """The scores are [0.1, -0.04] and [-0.07, 0.09] for beta 0.1. The chosen answers cost 2.01875 per token."""
    preference = (math.log1p(math.exp(-0.17)) + math.log1p(math.exp(0.13))) / 2
    quality = sum(math.log1p(math.exp(x)) for x in (-0.1, 0.04, -0.07, 0.09)) / 2
    expected = 0.8 * preference + 0.2 * quality + 2.01875
    assert P.loss(MPO()) == pytest.approx(expected, rel=1e-8)
    assert P_FLOAT32.loss(MPO()) == pytest.approx(expected, rel=1e-5)


def test_at_the_reference_each_logarithm_is_log_2():
    assert AT_REFERENCE.loss(MPO(alpha=0)) == pytest.approx((0.8 + 2 * 0.2) * math.log(2), rel=1e-12)


def test_the_preference_alone_is_dpo():
    assert P.loss(MPO(dpo_weight=1, bco_weight=0, alpha=0)) == pytest.approx(P.loss(DPO()), rel=1e-12)


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"mpo.bco_weight = -0.1; allowed: greater than or equal to 0"):
        MPO(bco_weight=-0.1)
