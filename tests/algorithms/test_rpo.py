"""RPO: worked numbers for each average of the likelihood, and its limit without the likelihood."""

import pytest
import torch
from tests.algorithms.preference_data import P_FLOAT32, P, evaluate
from tests.catalogue import catalogue

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.rpo import RPO
from posttrain.errors import ConfigError


@catalogue(
    "normalization, expected",
    [("token_mean", 2.704756767), ("sequence_mean", 2.701006767), ("sum", 0.6860067668 + (12 + 20.3) / 2)],
)
def test_worked_losses(normalization, expected):
    assert P.loss(RPO(nll_normalization=normalization)) == pytest.approx(expected, rel=1e-8)
    assert P_FLOAT32.loss(RPO(nll_normalization=normalization)) == pytest.approx(expected, rel=1e-5)


def test_without_the_likelihood_it_is_dpo():
    assert P.loss(RPO(alpha=0)) == P.loss(DPO())


def test_the_likelihood_pulls_on_chosen_tokens_only():
    mask_BT = P.batch.completion_mask_BT
    extra_BT = P.evaluate(RPO(alpha=0.5)).gradient_BT - P.evaluate(DPO()).gradient_BT
    expected_BT = torch.zeros_like(extra_BT)
    expected_BT[:2][mask_BT[:2]] = -0.5 / 16
    torch.testing.assert_close(extra_BT, expected_BT, rtol=1e-9, atol=1e-15)


def test_the_chosen_side_of_a_torn_pair_is_not_imitated():
    batch = P.batch
    batch.completion_mask_BT[3] = False
    gradient_BT = evaluate(RPO(), P.logprobs_BT, batch).gradient_BT
    assert (gradient_BT[[1, 3]] == 0).all()
    assert (gradient_BT[[0, 2]] != 0).any()


def test_an_unknown_average_is_refused():
    with pytest.raises(ConfigError, match=r"rpo.nll_normalization = 'mean'; allowed: 'token_mean', 'sequence_mean'"):
        RPO(nll_normalization="mean")
