"""DeepSeek-V3.2's GRPO: worked numbers for the off-policy sequence mask, its KL, and its limit without both."""

from dataclasses import replace

import pytest
import torch
from tests.catalogue import catalogue
from tests.worked_examples import pad

from posttrain.algorithms import DeepSeekV32, DrGRPO
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience

RAGGED_SAMPLING = ((-0.52, -1.10, -0.30), (-2.60, -0.70), (-0.12, -1.45, -0.95, -0.38), (-3.40,))


def test_worked_mask_against_the_old_policy(t, assert_ragged):
    """Mean falls are [-0.083, 0.15, 0.02, -1.3]. Only the second has a negative advantage and fell by more than 0.1."""
    logprobs_BT = t.logprobs_BT
    loss, metrics = DeepSeekV32(max_negative_divergence=0.1).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.9613544898, rel=1e-8)
    assert (logprobs_BT.grad[1] == 0).all()
    assert float(metrics["policy/dropped_fraction"]) == 0.25


def test_the_sampler_is_compared_with_where_it_reports_log_probabilities(t):
    """The mean falls from the sampler are [-0.057, -0.15, 0.02, -2.6], so nothing is dropped."""
    batch = replace(t.batch(), sampling_logprobs_BT=pad(RAGGED_SAMPLING))
    loss, metrics = DeepSeekV32(max_negative_divergence=0.1).loss(t.logprobs_BT, batch, t.totals)
    assert loss.item() == pytest.approx(1.128056945, rel=1e-8)
    assert float(metrics["policy/dropped_fraction"]) == 0


@catalogue("missing", [float("nan"), float("inf"), float("-inf")])
def test_a_token_without_a_number_counts_as_unmoved(t, missing: float):
    """The tokens of the second completion fell by 0.4 and rose by 0.1. If the first counts as unmoved, the mean fall is
    -0.05. If the second does, it is 0.2."""
    for token, dropped in ((0, 0.0), (1, 0.25)):
        sampling_BT = t.old_BT.clone()
        sampling_BT[1, token] = missing
        batch = replace(t.batch(), sampling_logprobs_BT=sampling_BT)
        loss, metrics = DeepSeekV32(max_negative_divergence=0.1).loss(t.logprobs_BT, batch, t.totals)
        assert float(metrics["policy/dropped_fraction"]) == dropped
        assert loss.isfinite()


def test_without_the_mask_the_loss_is_the_clipped_one(t):
    for algorithm in (DeepSeekV32(max_negative_divergence=None), DeepSeekV32(max_negative_divergence=0.2)):
        assert algorithm.loss(t.logprobs_BT, t.batch(), t.totals)[0].item() == pytest.approx(1.128056945, rel=1e-8)


def test_an_update_on_its_own_samples_drops_nothing(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    _, metrics = DeepSeekV32(max_negative_divergence=1e-6).loss(t.logprobs_BT, batch, t.totals)
    assert float(metrics["policy/dropped_fraction"]) == 0


def test_a_dropped_completion_keeps_its_kl_whose_gradient_is_rho_times_delta(t):
    """The second completion has delta [-0.5, 0.2] and rho [0.67, 1.105]. Divide by its 2 tokens and 4 completions."""
    logprobs_BT = t.logprobs_BT
    loss, _ = DeepSeekV32(max_negative_divergence=0.1, kl_coef=0.04).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    expected = [0.04 * x / 8 for x in (-0.335160023, 0.2210341836)]
    assert logprobs_BT.grad[1, :2].tolist() == pytest.approx(expected, rel=1e-8)
    assert loss.item() == pytest.approx(0.9613544898 + (1.131242803 - 1.128056945), rel=1e-8)


def test_the_advantage_is_not_divided(rewards_PG):
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(12, 1))
    expected_BT = DrGRPO(max_completion_length=1).advantages(experience)
    assert torch.equal(DeepSeekV32().advantages(experience), expected_BT)


def test_what_cannot_be_meant_is_refused():
    experience = Experience.from_rewards(torch.tensor([[0.7]]), completion_mask_BT=torch.ones(1, 1))
    with pytest.raises(ConfigError, match="deepseek_v32 compares completions"):
        DeepSeekV32().advantages(experience)
    with pytest.raises(ConfigError, match="expected gradient is zero"):
        DeepSeekV32(kl_estimator="k1")
    with pytest.raises(ConfigError, match=r"max_negative_divergence = 0.0; allowed: greater than 0"):
        DeepSeekV32(max_negative_divergence=0.0)
