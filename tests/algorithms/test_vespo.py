"""VESPO: worked numbers, one weight per completion, and rejected tokens that leave the product (RULE 25)."""

from dataclasses import replace

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import VESPO
from posttrain.errors import ConfigError
from posttrain.types import count_totals

PHI = [0.7032264989, 0.6827432253, 1.073206569, 0.2372612711]


def test_worked_loss_and_gradient(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    loss, metrics = VESPO().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.103756358, rel=1e-8)
    lengths = [3, 2, 4, 1]
    assert_ragged(logprobs_BT.grad, [[-phi * a / 10] * n for phi, a, n in zip(PHI, t.advantages, lengths, strict=True)])
    assert float(metrics["policy/kernel_mean"]) == pytest.approx(
        sum(phi * n for phi, n in zip(PHI, lengths, strict=True)) / 10, rel=1e-8
    )


@catalogue("setting, changed", [("k_pos", [0, 2]), ("lambda_pos", [0, 2]), ("k_neg", [1, 3]), ("lambda_neg", [1, 3])])
def test_each_setting_is_for_its_own_sign(t, setting: str, changed: list[int]):
    gradients = []
    for settings in ({}, {setting: 1.5}):
        logprobs_BT = t.logprobs_BT
        VESPO(**settings).loss(logprobs_BT, t.batch(), t.totals)[0].backward()
        gradients.append(logprobs_BT.grad[:, 0])
    assert (gradients[0] != gradients[1]).nonzero().flatten().tolist() == changed


def test_a_rejected_token_leaves_the_loss_and_the_product_but_not_the_denominator(t, assert_ragged):
    correction_BT = torch.ones_like(t.old_BT)
    correction_BT[0, 1] = 0
    logprobs_BT = t.logprobs_BT
    VESPO().loss(logprobs_BT, replace(t.batch(), correction_BT=correction_BT), t.totals)[0].backward()

    without = t.batch()
    without.completion_mask_BT[0, 1] = False
    expected_BT = t.logprobs_BT
    VESPO().loss(expected_BT, without, t.totals)[0].backward()
    assert logprobs_BT.grad[0, 1] == 0
    torch.testing.assert_close(logprobs_BT.grad, expected_BT.grad, rtol=1e-12, atol=0)
    assert count_totals(without).tokens == t.totals.tokens - 1  # its own totals would have changed the denominator


def test_a_negative_power_is_refused():
    with pytest.raises(ConfigError, match=r"vespo.k_pos = -1.0; allowed: greater than or equal to 0"):
        VESPO(k_pos=-1.0)
