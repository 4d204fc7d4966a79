"""DAPO: the wider upper clip over all tokens, the length penalty within the group, and the filter that it requests."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import DAPO, GRPO
from posttrain.errors import ConfigError
from posttrain.functional.shaping import soft_overlong
from posttrain.types import Batch, Experience, count_totals


def completions(rewards_PG: torch.Tensor, lengths: list[int]) -> Experience:
    mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Experience.from_rewards(rewards_PG, completion_mask_BT=mask_BT)


# Loss


@catalogue("clip_high, expected", [(0.28, 0.136989988), (0.2, 0.146589988)])
def test_worked_loss(t, clip_high: float, expected: float):
    loss, _ = DAPO(clip_high=clip_high).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(expected, rel=1e-8)


def test_worked_loss_in_float32(t):
    batch = Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=t.advantages_BT.float(),
        old_logprobs_BT=t.old_BT.float(),
        groups_B=torch.zeros(4, dtype=torch.long),
    )
    loss, _ = DAPO().loss(t.logprobs_BT.float(), batch, t.totals)
    assert loss.item() == pytest.approx(0.136989988, rel=1e-5)


def test_worked_gradient(t, assert_ragged):
    """The gradient is -rho A / 10, except on clipped tokens: above 1.28 with a gain, below 0.8 with a penalty."""
    logprobs_BT = t.logprobs_BT
    DAPO().loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    expected = [
        [-0.1261525316, 0, -0.1085804902],
        [0, 0.07736196427],
        [-0.0408080536, -0.03115203132, -0.04647336971, -0.04],
        [0.5503945001],
    ]
    assert_ragged(logprobs_BT.grad, expected)


def test_worked_dual_clip(t):
    loss, metrics = DAPO(clip_high=0.2, dual_clip=3.0).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(0.0461954879, rel=1e-8)
    assert float(metrics["policy/dual_clip_fraction"]) == pytest.approx(0.1)


def test_a_masked_completion_leaves_the_loss(t):
    batch = t.batch(without_rows=[3])
    loss, _ = DAPO(clip_high=0.2).loss(t.logprobs_BT, batch, count_totals(batch))
    assert loss.item() == pytest.approx(-0.4486716801, rel=1e-8)


# Advantages


def test_without_a_penalty_the_advantages_are_those_of_grpo(rewards_PG):
    experience = completions(rewards_PG, [3, 2, 4, 1, 2, 2, 3, 5, 1, 4, 2, 3])
    for algorithm in (DAPO(), DAPO(overlong_buffer=0), DAPO(overlong_buffer=2, max_completion_length=8)):
        assert torch.equal(algorithm.advantages(experience), GRPO().advantages(experience))


def test_the_worked_penalty_enters_before_the_statistics_of_the_group():
    """L_max is 100 and the buffer 20. Five right answers have 80 to 150 tokens. One answer is wrong."""
    lengths, penalties = [80, 85, 95, 100, 150, 10], [0, -0.25, -0.75, -1, -1, 0]
    rewards_PG = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    assert soft_overlong(torch.tensor(lengths), 100, 20).tolist() == penalties
    penalised_PG = rewards_PG + torch.tensor([penalties], dtype=torch.float64)
    actual_BT = DAPO(overlong_buffer=20, max_completion_length=100).advantages(completions(rewards_PG, lengths))
    expected_BT = GRPO().advantages(completions(penalised_PG, lengths))
    torch.testing.assert_close(actual_BT, expected_BT, rtol=1e-12, atol=1e-12)


def test_a_penalty_alone_is_a_signal_for_the_advantage():
    """Rewards are equal and lengths differ. The filter looks at rewards alone, and would have replaced this group."""
    algorithm = DAPO(overlong_buffer=4, max_completion_length=8)
    experience = completions(torch.ones(1, 2), [8, 3])
    assert algorithm.advantages(experience)[:, 0].tolist() == pytest.approx([-(2**-0.5), 2**-0.5], rel=1e-5)
    assert (DAPO().advantages(experience) == 0).all()


def test_a_completion_without_a_reward_stays_out():
    nan = float("nan")
    algorithm = DAPO(overlong_buffer=4, max_completion_length=8)
    with_it = algorithm.advantages(completions(torch.tensor([[1.0, nan, 0.0]]), [8, 8, 3]))
    without = algorithm.advantages(completions(torch.tensor([[1.0, 0.0]]), [8, 3]))
    assert (with_it[1] == 0).all()
    assert torch.equal(with_it[[0, 2]], without)


# What it requests, and what it refuses


def test_the_filter_is_a_need_that_can_be_switched_off():
    assert DAPO().needs == {"old", "signal"}
    assert DAPO(dynamic_sampling=False, kl_coef=0.1).needs == {"old", "reference"}


def test_a_penalty_without_the_length_at_which_it_is_complete_is_refused():
    with pytest.raises(
        ConfigError, match=r"(?s)overlong_buffer = 4 without max_completion_length.*sampling.max_completion_length"
    ):
        DAPO(overlong_buffer=4).advantages(completions(torch.tensor([[1.0, 0.0]]), [3, 2]))


def test_a_buffer_longer_than_every_completion_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)overlong_buffer = 4096, max_completion_length = 512.*buffer = 102"):
        DAPO(overlong_buffer=4096, max_completion_length=512)


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)group_size = 1, but dapo compares"):
        DAPO().advantages(completions(torch.tensor([[0.7]]), [2]))
