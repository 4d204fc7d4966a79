"""Length-normalised DPO: worked numbers, and that length earns no reward."""

import pytest
from tests.algorithms.preference_data import P_FLOAT32, P, PairFixture

from posttrain.algorithms.cdpo import CDPO
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.length_normalized_dpo import LengthNormalizedDPO
from posttrain.errors import ConfigError


def test_worked_losses():
    assert P.loss(LengthNormalizedDPO(beta=5)) == pytest.approx(0.7240966452, rel=1e-8)
    assert P_FLOAT32.loss(LengthNormalizedDPO()) == pytest.approx(0.7240966452, rel=1e-5)
    assert P.losses(LengthNormalizedDPO(beta=0.1)) == pytest.approx([0.6805195959, 0.701611272], rel=1e-8)


def test_with_answers_of_one_length_it_is_dpo_at_another_beta():
    pair = PairFixture([-3.0], [-5.0], [-4.0], [-4.5], [4], [4])
    assert pair.loss(LengthNormalizedDPO(beta=2.0)) == pytest.approx(pair.loss(DPO(beta=0.5)), rel=1e-12)
    noisy = LengthNormalizedDPO(beta=2.0, label_smoothing=0.2)
    assert pair.loss(noisy) == pytest.approx(pair.loss(CDPO(beta=0.5, label_smoothing=0.2)), rel=1e-12)


def test_an_answer_of_twice_the_same_text_has_the_same_reward():
    short = PairFixture([-3.0], [-5.0], [-4.0], [-4.5], [4], [4])
    doubled = PairFixture([-6.0], [-5.0], [-8.0], [-4.5], [8], [4])
    algorithm = LengthNormalizedDPO()
    assert doubled.loss(algorithm) == pytest.approx(short.loss(algorithm), rel=1e-12)


def test_a_negative_beta_is_refused():
    with pytest.raises(ConfigError, match=r"length_normalized_dpo.beta = -1; allowed: greater than 0"):
        LengthNormalizedDPO(beta=-1)
