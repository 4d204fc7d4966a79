"""ReMax: worked numbers, the greedy answer as the baseline, and prompts without a greedy reward."""

import pytest
import torch

from posttrain.algorithms import REINFORCE, ReMax
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, Totals, count_totals

NAN = float("nan")


def one_token_each(rewards_PG: torch.Tensor, greedy: list[float]) -> Experience:
    return Experience.from_rewards(
        rewards_PG,
        completion_mask_BT=torch.ones(rewards_PG.numel(), 1),
        greedy_rewards_P=torch.tensor(greedy, dtype=torch.float64),
    )


def test_worked_advantages(rewards_PG):
    advantages_B1 = ReMax().advantages(one_token_each(rewards_PG, [0, 0.6, 1]))
    expected = [[1, 0, 0, 1], [-0.4, 0.3, -0.1, -0.2], [0, 0, 0, 0]]
    torch.testing.assert_close(advantages_B1.reshape(3, 4), torch.tensor(expected, dtype=torch.float64))


def test_one_completion_per_prompt_is_enough_and_the_greedy_one_itself_teaches_nothing():
    rewards_PG = torch.tensor([[0.7], [0.3]], dtype=torch.float64)
    assert ReMax().min_group_size == 1
    assert ReMax().advantages(one_token_each(rewards_PG, [0.2, 0.3])).flatten().tolist() == pytest.approx([0.5, 0])


def test_worked_loss_and_gradient(t, assert_ragged):
    """The loss is -A * logprobs, summed over tokens and averaged over the four completions."""
    logprobs_BT = t.logprobs_BT
    loss, _ = ReMax().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(-0.002, rel=1e-8)
    assert_ragged(logprobs_BT.grad, [[-0.3] * 3, [0.175] * 2, [-0.1] * 4, [0.375]])


def test_the_kl_is_in_the_rewards_of_the_sampled_answer_alone(t, assert_ragged):
    """The returns of R = [1, 0, 0.5, 0.25] with a KL weight of 0.1, minus the greedy reward 0.4 on every token."""
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
        greedy_rewards_P=torch.tensor([0.4], dtype=torch.float64),
    )
    expected = [[0.605, 0.615, 0.595], [-0.4, -0.41], [0.08, 0.09, 0.08, 0.1], [-0.09]]
    assert_ragged(ReMax(kl_coef=0.1).advantages(experience), expected)


def test_a_greedy_reward_of_zero_is_reinforce_without_a_baseline(rewards_PG):
    experience = one_token_each(rewards_PG, [0, 0, 0])
    torch.testing.assert_close(ReMax().advantages(experience), REINFORCE(baseline="none").advantages(experience))


def test_a_prompt_whose_greedy_answer_has_no_reward_leaves_the_loss(rewards_PG):
    """Such a prompt is neither counted nor trained with a baseline of 0."""
    experience = one_token_each(rewards_PG, [0, NAN, 1])
    batch = ReMax().to_batch(experience)
    assert (ReMax().advantages(experience)[4:8] == 0).all()
    assert count_totals(batch) == Totals(tokens=8, sequences=8, rows=12)
    logprobs_BT = torch.full((12, 1), -0.5, dtype=torch.float64, requires_grad=True)
    loss, _ = ReMax().loss(logprobs_BT, batch, count_totals(batch))
    assert (torch.autograd.grad(loss, logprobs_BT)[0][4:8] == 0).all()
    without = ReMax().to_batch(one_token_each(rewards_PG[[0, 2]], [0, 1]))
    assert loss.item() == ReMax().loss(torch.full((8, 1), -0.5), without, count_totals(without))[0].item()


def test_on_policy_the_clip_changes_no_gradient(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    gradients = []
    for algorithm in (ReMax(), ReMax(clip_low=0.2, clip_high=0.2)):
        logprobs_BT = t.logprobs_BT
        algorithm.loss(logprobs_BT, batch, t.totals)[0].backward()
        gradients.append(logprobs_BT.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


def test_without_greedy_rewards_it_says_what_to_pass():
    experience = Experience.from_rewards(torch.tensor([[1.0]]), completion_mask_BT=torch.ones(1, 1))
    with pytest.raises(ConfigError, match=r"(?s)no rewards of greedy completions.*Pass greedy_rewards_P"):
        ReMax().advantages(experience)


def test_half_a_clip_is_refused():
    with pytest.raises(ConfigError, match=r"clip_low = None, clip_high = 0.2; allowed: both numbers, or both None"):
        ReMax(clip_high=0.2)
