"""CPO: worked numbers, and that it reads no reference."""

from dataclasses import replace

import pytest
from tests.algorithms.preference_data import P_FLOAT32, P

from posttrain.algorithms.cpo import CPO
from posttrain.algorithms.dpo import DPO
from posttrain.errors import ConfigError


def test_worked_losses():
    assert P.losses(CPO(alpha=0)) == pytest.approx([0.5333821554, 0.809185019], rel=1e-8)
    assert P.loss(CPO(alpha=1)) == pytest.approx(2.690033587, rel=1e-8)
    assert P_FLOAT32.loss(CPO(alpha=1)) == pytest.approx(2.690033587, rel=1e-5)


def test_it_is_dpo_with_a_uniform_reference():
    """The reference gives both answers the same probability."""
    uniform = replace(P, ref_chosen=(-10, -10), ref_rejected=(-10, -10))
    assert P.loss(CPO(alpha=0)) == pytest.approx(uniform.loss(DPO()), rel=1e-12)


def test_no_reference_is_needed_or_read():
    assert CPO().needs == set()
    other = replace(P, ref_chosen=(0, 0), ref_rejected=(-50, -50))
    assert P.loss(CPO()) == other.loss(CPO())


def test_the_reward_is_beta_times_the_log_probability():
    step = P.evaluate(CPO(beta=0.2))
    assert step.metric("rewards/chosen") == pytest.approx(0.2 * step.metric("logps/chosen"), rel=1e-12)


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"cpo.alpha = -1; allowed: greater than or equal to 0"):
        CPO(alpha=-1)
