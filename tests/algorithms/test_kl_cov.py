"""KL-Cov: worked numbers, and tokens that a penalty holds near the old policy."""

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms import KLCov
from posttrain.errors import ConfigError
from posttrain.functional.ratios import token_ratio

TWO_OF_TEN = KLCov(cov_share=0.2)


def test_worked_loss(t):
    """The penalty holds (2, 1) and (1, 3): |d| is 0.4 and 0.1."""
    loss, metrics = TWO_OF_TEN.loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(0.1695293344, rel=1e-8)
    assert float(metrics["policy/selected_fraction"]) == pytest.approx(0.2)
    loss, _ = KLCov(cov_share=0.2, penalty=0.0).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(0.1195293344, rel=1e-8)


def test_worked_gradient(t):
    """There is no clip, so every token has -rho A / 10. The two held tokens add the sign of d / 10: both fell."""
    logprobs_BT = t.logprobs_BT
    TWO_OF_TEN.loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    expected_BT = -token_ratio(t.logprobs_BT, t.old_BT).detach() * t.advantages_BT / 10
    expected_BT[1, 0] -= 0.1
    expected_BT[0, 2] -= 0.1
    torch.testing.assert_close(logprobs_BT.grad[t.mask_BT], expected_BT[t.mask_BT], rtol=1e-10, atol=0)


def test_the_choice_is_made_among_all_rows_of_the_update(t):
    batch = replace(t.batch(), row_ids_B=torch.arange(4), current_logprobs_BT=t.logprobs_BT.detach())
    prepared = TWO_OF_TEN.prepare(batch)
    parts = [TWO_OF_TEN.loss(t.logprobs_BT[[b]], prepared.rows([b]), t.totals)[0].item() for b in range(4)]
    assert sum(parts) == pytest.approx(0.1695293344, rel=1e-8)


def test_the_penalty_is_no_part_of_what_a_correction_weighs(t):
    """A weight of 2 doubles the policy term, 0.1195293344, but not the penalty, 0.05."""
    batch = replace(t.batch(), correction_BT=torch.full_like(t.old_BT, 2.0))
    loss, _ = TWO_OF_TEN.loss(t.logprobs_BT, batch, t.totals)
    assert loss.item() == pytest.approx(2 * 0.1195293344 + 0.05, rel=1e-8)


def test_where_nothing_has_moved_the_penalty_has_no_gradient(t):
    batch = replace(t.batch(), old_logprobs_BT=None)
    gradients = []
    for penalty in (0.0, 5.0):
        logprobs_BT = t.logprobs_BT
        KLCov(cov_share=1.0, penalty=penalty).loss(logprobs_BT, batch, t.totals)[0].backward()
        gradients.append(logprobs_BT.grad)
    assert torch.equal(*gradients)


def test_needs():
    assert KLCov().needs == {"old", "current", "signal"}
    assert KLCov(dynamic_sampling=False, entropy_coef=0.1).needs == {"old", "current", "entropy"}


def test_a_negative_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"kl_cov.penalty = -1.0; allowed: greater than or equal to 0"):
        KLCov(penalty=-1.0)
