"""Hinge: the worked number, and that a learned pair has no gradient."""

import pytest
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.hinge import Hinge
from posttrain.errors import ConfigError


def test_worked_loss():
    assert P.loss(Hinge(beta=0.1)) == pytest.approx(0.98, rel=1e-8)
    assert P_FLOAT32.loss(Hinge(beta=0.1)) == pytest.approx(0.98, rel=1e-5)


def test_at_the_reference_the_loss_is_1():
    assert AT_REFERENCE.loss(Hinge()) == pytest.approx(1, rel=1e-12)


@catalogue("margin, slope", [(0.99, -0.1), (1.01, 0.0)])
def test_a_pair_that_has_reached_its_margin_has_no_gradient(margin, slope):
    step = one_pair(10 * margin, 0).evaluate(Hinge(beta=0.1))
    assert step.gradient_BT[0, 1].item() == slope
    assert step.loss.item() == pytest.approx(max(0, 1 - margin), rel=1e-9)


def test_with_noisy_labels_the_other_order_counts_too():
    """The loss is 0.8 (1 - 0.5) + 0.2 (1 + 0.5)."""
    assert one_pair(5, 0).loss(Hinge(beta=0.1, label_smoothing=0.2)) == pytest.approx(0.7, rel=1e-12)


def test_a_beta_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"hinge.beta = 0; allowed: greater than 0"):
        Hinge(beta=0)
