"""Dr. GRPO: worked numbers, its factor relative to RLOO, and the constant that it requires."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import RLOO, DrGRPO
from posttrain.errors import ConfigError
from posttrain.types import Experience, Totals, count_totals


def one_token_each(rewards_PG: torch.Tensor) -> Experience:
    return Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))


def test_worked_advantages(rewards_PG):
    expected = [[0.5, -0.5, -0.5, 0.5], [-0.3, 0.4, 0, -0.1], [0, 0, 0, 0]]
    advantages_BT = DrGRPO().advantages(one_token_each(rewards_PG))
    torch.testing.assert_close(advantages_BT.reshape(3, 4), torch.tensor(expected, dtype=torch.float64))


def test_rloo_is_g_over_g_minus_1_times_it(rewards_PG):
    experience = one_token_each(rewards_PG)
    torch.testing.assert_close(
        RLOO().advantages(experience), 4 / 3 * DrGRPO().advantages(experience), rtol=1e-12, atol=1e-12
    )


def test_worked_loss_and_gradient(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    loss, _ = DrGRPO(max_completion_length=8).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.04580937126, rel=1e-8)
    token_mean_gradient = [
        [-0.1261525316, 0, -0.1085804902],
        [0, 0.07736196427],
        [-0.0408080536, -0.03115203132, -0.04647336971, -0.04],
        [0.5503945001],
    ]
    assert_ragged(logprobs_BT.grad * (4 * 8) / 10, token_mean_gradient)


@catalogue("counting_it, expected", [(False, -0.16825188), (True, -0.12618891)])
def test_a_masked_completion_leaves_the_loss_and_by_default_the_count(t, counting_it: bool, expected: float):
    batch = t.batch(without_rows=[3])
    totals = Totals(tokens=9, sequences=4, rows=4) if counting_it else count_totals(batch)
    loss, _ = DrGRPO(max_completion_length=8).loss(t.logprobs_BT, batch, totals)
    assert loss.item() == pytest.approx(expected, rel=1e-8)


def test_a_long_completion_weighs_as_much_per_token_as_a_short_one(t):
    logprobs_BT = t.old_BT.requires_grad_()
    loss, _ = DrGRPO(max_completion_length=8).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    per_token_BT = logprobs_BT.grad / -t.advantages_BT
    assert per_token_BT[t.mask_BT].tolist() == pytest.approx([1 / 32] * 10)


def test_the_constant_length_has_no_silent_default(t):
    with pytest.raises(ConfigError, match=r"(?s)dr_grpo without max_completion_length.*sampling.max_completion_length"):
        DrGRPO().loss(t.logprobs_BT, t.batch(), t.totals)


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match="dr_grpo compares completions"):
        DrGRPO().advantages(one_token_each(torch.tensor([[0.7]])))
