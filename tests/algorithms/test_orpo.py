"""ORPO: worked numbers, and the odds of answers whose probability is 1 or nearly 0."""

import pytest
import torch
from tests.algorithms.preference_data import P_FLOAT32, P, PairFixture
from tests.catalogue import catalogue

from posttrain.algorithms.orpo import ORPO
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(ORPO(beta=0.1)) == pytest.approx(2.076810649, rel=1e-8)
    assert P_FLOAT32.loss(ORPO(beta=0.1)) == pytest.approx(2.076810649, rel=1e-5)


def test_worked_log_odds():
    metrics = P.evaluate(ORPO()).metrics
    assert float(metrics["log_odds_chosen"]) == pytest.approx((-0.07264581585 + 0.6181810103) / 2, rel=1e-8)
    assert float(metrics["log_odds_ratio"]) == pytest.approx((-0.7301296203 - 0.4310833692) / 2, rel=1e-8)
    assert float(metrics["rewards/chosen"]) == pytest.approx(0.1 * (-2 - 2.03) / 2, rel=1e-8)


def test_the_odds_ratio_alone_is_the_difference_between_two_weights():
    odds_term = (P.loss(ORPO(beta=1.1)) - P.loss(ORPO(beta=0.1))) / 1.0
    assert odds_term == pytest.approx((0.7301296203 + 0.4310833692) / 2, rel=1e-8)


@catalogue("dtype", [torch.float32, torch.float64])
@catalogue("chosen", [0.0, -1e-10, -1e-7, -50.0])
@catalogue("rejected", [0.0, -1e-7, -50.0])
def test_certain_and_hopeless_answers_stay_finite(dtype, chosen, rejected):
    pair = PairFixture([chosen], [rejected], [0], [0], [1], [1], dtype)
    step = pair.evaluate(ORPO())
    assert step.loss.isfinite()
    assert step.gradient_BT[:, 1].isfinite().all()


def test_beyond_certain_only_the_likelihood_has_a_gradient():
    """The gradient is -1 on the chosen token. The odds are clamped at a = -1e-7."""
    step = PairFixture([-1e-9], [-3.0], [0], [0], [1], [1]).evaluate(ORPO())
    assert step.gradient_BT[0, 1].item() == -1


@pytest.mark.parametrize(("normalization", "nll"), [("token_mean", 2.01875), ("sequence_mean", 2.015), ("sum", 16.15)])
def test_the_likelihood_is_averaged_as_named(normalization, nll):
    odds_term = 0.1 * (0.7301296203 + 0.4310833692) / 2
    assert P.loss(ORPO(nll_normalization=normalization)) == pytest.approx(nll + odds_term, rel=1e-8)


def test_no_reference_is_needed():
    assert ORPO().needs == set()


def test_a_weight_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"orpo.beta = 0; allowed: greater than 0"):
        ORPO(beta=0)
