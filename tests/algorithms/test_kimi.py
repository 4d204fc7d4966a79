"""Kimi k1.5 and K2: worked numbers, the identity between their gradients, and length and budget in the reward."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import DrGRPO, KimiK2, KimiK15
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience

RESIDUALS = [0.5375, -0.4075, 0.0705, -0.3175]


@pytest.fixture
def group(t) -> Experience:
    """Return fixture T as one group. The mean of its rewards is 0.4375."""
    return Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
    )


def gradient(algorithm: KimiK15 | KimiK2, batch: Batch, t) -> torch.Tensor:
    logprobs_BT = t.logprobs_BT
    algorithm.loss(logprobs_BT, batch, t.totals)[0].backward()
    return logprobs_BT.grad


def test_worked_loss_and_gradient_of_k2(t, group, assert_ragged):
    """The log-ratios are [0.25, -0.3, -0.08, 1.3] and the residuals A - 0.1 l."""
    batch = KimiK2(tau=0.1).to_batch(group)
    loss, metrics = KimiK2(tau=0.1).loss(t.logprobs_BT, batch, t.totals)
    assert loss.item() == pytest.approx(0.14018475, rel=1e-8)
    assert loss.item() == pytest.approx(sum(r**2 for r in RESIDUALS) / 4, rel=1e-8)
    assert_ragged(gradient(KimiK2(tau=0.1), batch, t), [[-0.026875] * 3, [0.020375] * 2, [-0.003525] * 4, [0.015875]])
    expected = sum(x**2 for x in (0.25, 0.3, 0.08, 1.3)) / 4
    assert float(metrics["policy/squared_log_ratio"]) == pytest.approx(expected)


def test_worked_ascent_direction_of_k15(t, group, assert_ragged):
    ascent_BT = -gradient(KimiK15(tau=0.1), KimiK15().to_batch(group), t)
    assert_ragged(ascent_BT, [[0.134375] * 3, [-0.101875] * 2, [0.017625] * 4, [-0.079375]])


def test_worked_loss_of_k15(t, group):
    """The loss is -(R - mean) S + tau / 2 l^2, with S = [-1.75, -3, -2.98, -0.8]."""
    loss, _ = KimiK15(tau=0.1).loss(t.logprobs_BT, KimiK15().to_batch(group), t.totals)
    advantages, sums, ratios = (0.5625, -0.4375, 0.0625, -0.1875), (-1.75, -3, -2.98, -0.8), (0.25, -0.3, -0.08, 1.3)
    expected = sum(-a * s + 0.05 * l * l for a, s, l in zip(advantages, sums, ratios, strict=True)) / 4  # noqa: E741
    assert loss.item() == pytest.approx(expected, rel=1e-8)


@catalogue("tau", [0.03, 1.0])
def test_the_gradient_of_k2_is_that_of_k15_times_two_tau(t, group, tau: float):
    batch = KimiK2().to_batch(group)
    torch.testing.assert_close(
        gradient(KimiK2(tau=tau), batch, t), 2 * tau * gradient(KimiK15(tau=tau), batch, t), rtol=1e-12, atol=0
    )


def test_on_policy_both_are_reinforce_with_the_mean_of_the_group(t, group):
    """This holds whether the old policy is passed or implied. tau then has no effect on the direction."""
    advantages_BT = KimiK15().advantages(group)
    for old_BT in (None, t.logprobs_BT.detach()):
        batch = Batch(
            completion_mask_BT=t.mask_BT,
            advantages_BT=advantages_BT,
            old_logprobs_BT=old_BT,
            groups_B=t.batch().groups_B,
        )
        for algorithm, factor in ((KimiK15(tau=7.0), 1.0), (KimiK2(tau=0.25), 0.5)):
            expected_BT = -factor * advantages_BT / 4
            actual_BT = gradient(algorithm, batch, t)
            torch.testing.assert_close(actual_BT[t.mask_BT], expected_BT[t.mask_BT], rtol=1e-12, atol=0)


def test_the_advantage_is_that_of_dr_grpo(group):
    expected_BT = DrGRPO(max_completion_length=4).advantages(group)
    assert torch.equal(KimiK15().advantages(group), expected_BT)
    assert torch.equal(KimiK2().advantages(group), expected_BT)


def test_the_penalty_still_pulls_where_a_ratio_would_be_clamped(t, group):
    """The log-ratio is 100 per token. The loss takes no exp of it, so nothing is clamped."""
    batch = KimiK15().to_batch(group)
    batch = Batch(
        completion_mask_BT=batch.completion_mask_BT,
        advantages_BT=torch.zeros_like(t.old_BT),
        old_logprobs_BT=t.logprobs_BT.detach() - 100,
        groups_B=batch.groups_B,
    )
    lengths_B1 = t.mask_BT.sum(dim=-1, keepdim=True)
    expected_BT = (0.1 * 100 * lengths_B1.double() / 4).expand(t.mask_BT.shape)
    torch.testing.assert_close(gradient(KimiK15(tau=0.1), batch, t)[t.mask_BT], expected_BT[t.mask_BT])


def test_the_length_reward_prefers_short_right_answers(t):
    """The lengths are 3, 2, 4 and 1, and the first and third are right. The length reward is lambda [-1/6, 1/6, -1/2,
    1/2], and at most 0 for wrong answers."""
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64), completion_mask_BT=t.mask_BT
    )
    shaped = torch.tensor([1 - 1 / 12, 0, 1 - 1 / 4, 0], dtype=torch.float64)
    advantages_BT = KimiK15(length_coef=0.5).advantages(experience)
    torch.testing.assert_close(advantages_BT[:, 0], shaped - shaped.mean(), rtol=1e-8, atol=0)
    nobody_right = KimiK15(length_coef=0.5, correct_at=2.0).advantages(experience)
    assert nobody_right[0, 0].item() == pytest.approx(1 - 1 / 12 - (2 - 1 / 12 - 1 / 4) / 4)


def test_a_reward_that_rounds_to_the_mark_counts_as_right():
    """In float32, 0.6 + 0.3 + 0.1 is below 1."""
    rewards_PG = torch.tensor([[0.6, 0.0]]) + torch.tensor([[0.3, 0.0]]) + torch.tensor([[0.1 - 1e-7, 0.0]])
    assert rewards_PG[0, 0].item() < 1
    mask_BT = torch.tensor([[1, 0, 0], [1, 1, 1]])
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=mask_BT)
    assert KimiK15(length_coef=1.0).advantages(experience)[0, 0].item() == pytest.approx((1.5 + 0.5) / 2)


def test_an_answer_beyond_the_budget_is_fined_before_the_mean_is_taken(t):
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64), completion_mask_BT=t.mask_BT
    )
    advantages_BT = KimiK2(token_budget=3, budget_penalty=0.4).advantages(experience)
    assert advantages_BT[:, 0].tolist() == pytest.approx([0.6, -0.4, 0.2, -0.4])


def test_answers_of_equal_reward_have_signal_when_one_is_beyond_the_budget(t):
    experience = Experience.from_rewards(torch.full((1, 4), 0.1), completion_mask_BT=t.mask_BT)
    assert (KimiK2().advantages(experience) == 0).all()
    assert (KimiK2(token_budget=3).advantages(experience)[t.mask_BT] != 0).all()


def test_the_auxiliary_loss_is_asked_for_with_its_coefficient():
    assert "auxiliary" not in KimiK2().needs
    assert "auxiliary" in KimiK2(ptx_coef=0.1).needs


@catalogue("algorithm", [KimiK15(), KimiK2()], ids=lambda a: a.key)
def test_a_group_of_one_is_refused(algorithm):
    experience = Experience.from_rewards(torch.tensor([[0.7]]), completion_mask_BT=torch.ones(1, 1))
    with pytest.raises(ConfigError, match=f"{algorithm.key} compares completions"):
        algorithm.advantages(experience)


def test_without_tau_there_is_nothing_to_regress_on():
    with pytest.raises(ConfigError, match=r"kimi_k2.tau = 0; allowed: greater than 0"):
        KimiK2(tau=0)
