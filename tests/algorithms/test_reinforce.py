"""REINFORCE: worked numbers, three baselines and their state, returns with KL and discount, and the optional clip."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import REINFORCE
from posttrain.algorithms.reinforce import MovingAverage
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience

NAN = float("nan")


def of_rewards(*rewards: float) -> Experience:
    """Return an experience with one token per completion and one completion per prompt."""
    return Experience.from_rewards(
        torch.tensor(rewards, dtype=torch.float64)[:, None], completion_mask_BT=torch.ones(len(rewards), 1)
    )


def test_worked_loss_and_gradient(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    loss, _ = REINFORCE().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(-0.002, rel=1e-8)
    assert_ragged(logprobs_BT.grad, [[-0.3] * 3, [0.175] * 2, [-0.1] * 4, [0.375]])


def test_worked_loss_with_the_token_clip(t):
    loss, metrics = REINFORCE(clip_low=0.2, clip_high=0.2).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(0.3664749701, rel=1e-8)
    assert float(metrics["clip_ratio/region_mean"]) == pytest.approx(0.2)


def test_on_policy_the_clip_changes_no_gradient(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    gradients = []
    for algorithm in (REINFORCE(), REINFORCE(clip_low=0.2, clip_high=0.2)):
        logprobs_BT = t.logprobs_BT
        algorithm.loss(logprobs_BT, batch, t.totals)[0].backward()
        gradients.append(logprobs_BT.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


# Baselines


@catalogue(
    "algorithm, expected",
    [
        (REINFORCE(baseline="none"), [1.0, 0.0, 0.5]),
        (REINFORCE(baseline="batch_mean"), [0.5, -0.5, 0.0]),
        (REINFORCE(baseline="moving_average"), [0.8, -0.2, 0.3]),
    ],
)
def test_each_baseline_is_subtracted(algorithm: REINFORCE, expected: list[float]):
    advantages_B1 = algorithm.advantages(of_rewards(1.0, 0.0, 0.5), MovingAverage(mean=0.2, batches=3))
    assert advantages_B1.flatten().tolist() == pytest.approx(expected)


def test_the_moving_average_starts_at_the_first_mean_and_never_sees_the_batch_it_serves():
    algorithm = REINFORCE(baseline="moving_average", baseline_decay=0.9)
    state = algorithm.initial_state()
    first, second = of_rewards(1.0, 0.0), of_rewards(1.0, 1.0)
    assert algorithm.advantages(first, state).flatten().tolist() == [1.0, 0.0]
    state = algorithm.next_state(state, first)
    assert state == MovingAverage(mean=0.5, batches=1)
    assert algorithm.advantages(second, state).flatten().tolist() == [0.5, 0.5]
    state = algorithm.next_state(state, second)
    assert (state.mean, state.batches) == (pytest.approx(0.9 * 0.5 + 0.1 * 1.0), 2)


def test_unscored_rewards_enter_no_baseline():
    experience = of_rewards(1.0, NAN, 0.0)
    assert REINFORCE().advantages(experience).flatten().tolist() == [0.5, 0.0, -0.5]
    assert REINFORCE().next_state(MovingAverage(), experience) == MovingAverage(mean=0.5, batches=1)


def test_a_batch_without_any_reward_leaves_the_state_as_it_was():
    state = MovingAverage(mean=0.3, batches=4)
    assert REINFORCE().next_state(state, of_rewards(NAN, NAN)) == state


def test_one_completion_per_prompt_is_enough():
    assert REINFORCE().min_group_size == 1
    assert REINFORCE(baseline="none").advantages(of_rewards(0.7)).flatten().tolist() == [0.7]


# Returns


def test_worked_returns_with_the_kl_in_the_reward():
    """With a KL weight of 0.1 and a score of 1.5 the token rewards are [-0.01, 0.02, -0.005, 1.48]. A return is the sum
    of the rewards from its token on."""
    experience = Experience.from_rewards(
        torch.tensor([[1.5]], dtype=torch.float64),
        completion_mask_BT=torch.ones(1, 4),
        old_logprobs_BT=torch.tensor([[-0.5, -1.2, -0.3, -0.9]], dtype=torch.float64),
        ref_logprobs_BT=torch.tensor([[-0.6, -1.0, -0.35, -1.1]], dtype=torch.float64),
    )
    returns_BT = REINFORCE(baseline="none", kl_coef=0.1).advantages(experience)
    assert returns_BT.flatten().tolist() == pytest.approx([1.485, 1.495, 1.475, 1.48], rel=1e-8)


def test_gamma_discounts_per_trained_token():
    """Tool output between the tokens does not count as a time step."""
    experience = Experience.from_rewards(
        torch.tensor([[1.0]], dtype=torch.float64), completion_mask_BT=torch.tensor([[0, 1, 0, 0, 1, 1, 0]])
    )
    advantages_BT = REINFORCE(baseline="none", gamma=0.5).advantages(experience)
    assert advantages_BT.tolist() == [[0, 0.25, 0, 0, 0.5, 1.0, 0]]


def test_the_reward_stands_on_the_last_trained_token_when_gamma_is_zero():
    experience = Experience.from_rewards(torch.tensor([[2.0]]), completion_mask_BT=torch.tensor([[1, 1, 1, 0]]))
    assert REINFORCE(baseline="none", gamma=0.0).advantages(experience).tolist() == [[0, 0, 2.0, 0]]


# Refusals


def test_half_a_clip_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)clip_low = 0.2, clip_high = None; allowed: both.*Set both"):
        REINFORCE(clip_low=0.2)


def test_a_kl_without_log_probabilities_is_refused():
    with pytest.raises(ConfigError, match="old or reference log-probabilities are missing"):
        REINFORCE(kl_coef=0.1).advantages(of_rewards(0.7))
