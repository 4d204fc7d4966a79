"""DPOP: worked numbers, and the penalty with its kink."""

import pytest
from tests.algorithms.preference_data import P_FLOAT32, P, one_pair

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpop import DPOP
from posttrain.algorithms.rpo import RPO
from posttrain.errors import ConfigError

WORKED = DPOP(beta=0.1, penalty=5)


def test_worked_losses():
    assert P.losses(WORKED) == pytest.approx([0.6117553389, 0.8716983586], rel=1e-8)
    assert P.loss(WORKED) == pytest.approx(0.7417268487, rel=1e-8)
    assert P_FLOAT32.loss(WORKED) == pytest.approx(0.7417268487, rel=1e-5)


def test_worked_penalty():
    """One of the two chosen answers became less likely by 0.4 nats: beta * 5 * 0.4, halved by the mean."""
    assert P.evaluate(WORKED).metric("rewards/penalties") == pytest.approx(0.1 * 5 * 0.4 / 2, rel=1e-8)


def test_without_a_penalty_it_is_dpo_and_with_a_likelihood_rpo():
    assert P.loss(DPOP(beta=0.1, penalty=0)) == P.loss(DPO(beta=0.1))
    assert P.loss(DPOP(beta=0.1, penalty=0, alpha=0.5)) == P.loss(RPO(beta=0.1, alpha=0.5))


def test_a_chosen_answer_that_became_more_likely_is_not_penalised():
    assert one_pair(2, -1).loss(WORKED) == one_pair(2, -1).loss(DPO(beta=0.1))


def test_at_the_kink_the_penalty_has_no_gradient():
    at_it = one_pair(0, 0)
    assert at_it.evaluate(WORKED).gradient_BT[0, 1] == at_it.evaluate(DPO(beta=0.1)).gradient_BT[0, 1]


def test_a_negative_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"dpop.penalty = -1; allowed: greater than or equal to 0"):
        DPOP(penalty=-1)
