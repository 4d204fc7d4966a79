"""Pass@k training: worked advantages, its limits k = 1 and k = n, which answers count as correct, and refusals."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import PassAtK
from posttrain.errors import ConfigError
from posttrain.types import Experience


def one_token_each(rewards_PG: torch.Tensor) -> Experience:
    return Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))


def answers(n: int, c: int, dtype: torch.dtype = torch.float64) -> Experience:
    """One prompt with n answers, the first c of them correct."""
    return one_token_each((torch.arange(n)[None] < c).to(dtype))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-5), (torch.float32, 1e-5)])
def test_worked_advantages(dtype: torch.dtype, rtol: float):
    """n = 8, c = 3, k = 4. The numbers are for epsilon 0, which tests/functional/test_baselines.py checks exactly."""
    expected = torch.tensor([0.2773500981] * 3 + [-0.1664100589] * 5, dtype=dtype)
    torch.testing.assert_close(PassAtK(k=4).advantages(answers(8, 3, dtype)).flatten(), expected, rtol=rtol, atol=0)


@catalogue("c", range(9))
def test_advantages_sum_to_zero_and_are_zero_when_every_four_hold_a_correct_answer(c: int):
    advantages_B1 = PassAtK(k=4).advantages(answers(8, c))
    assert advantages_B1.sum().item() == pytest.approx(0, abs=1e-12)
    assert (advantages_B1 == 0).all() == (c == 0 or c > 4)


def test_with_k_1_it_is_grpo_for_right_and_wrong_with_the_deviation_of_the_population():
    experience = answers(8, 3)
    rewards = experience.rewards_PG
    expected_PG = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)
    torch.testing.assert_close(PassAtK(k=1).advantages(experience).reshape(1, 8), expected_PG, rtol=1e-12, atol=0)


def test_a_rare_success_weighs_more_than_with_k_1_and_a_frequent_one_less():
    def share(c: int, k: int) -> float:
        return PassAtK(k=k).advantages(answers(8, c)).abs().sum().item()

    assert share(1, 4) / share(4, 4) > share(1, 1) / share(4, 1)


def test_correct_is_what_reaches_the_mark():
    rewards_PG = torch.tensor([[1.0, 0.9, 0.5, -1.0]], dtype=torch.float64)
    for mark, c in ((1.0, 1), (0.9, 2), (0.0, 3)):
        right = PassAtK(k=2, correct_at=mark).advantages(one_token_each(rewards_PG)).flatten() > 0
        assert right.tolist() == [i < c and c < 3 for i in range(4)]


def test_worked_loss(t):
    """Token ratios are clipped at 0.2, and the loss is the mean over all tokens."""
    loss, _ = PassAtK().loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(0.146589988, rel=1e-8)


def test_more_answers_than_the_group_has_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)group_size = 8, but pass_at_k.*at least 16.*sampling.group_size = 16"):
        PassAtK(k=16).advantages(answers(8, 3))
    assert PassAtK(k=16).group_size_needed == 17, "16 answers have only one subset of 16, so nothing would be learned"
    assert PassAtK(k=1).group_size_needed == 2


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"pass_at_k compares completions"):
        PassAtK(k=1).advantages(answers(1, 1))
