"""RLOO: worked numbers with and without KL, the sequence-level clip, and siblings without a reward."""

import pytest
import torch

from posttrain.algorithms import RLOO
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, count_totals


def one_token_each(rewards_PG: torch.Tensor) -> Experience:
    return Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))


def test_worked_advantages(rewards_PG):
    two_thirds, eight_fifteenths = 0.6666666667, 0.5333333333
    expected = [
        [two_thirds, -two_thirds, -two_thirds, two_thirds],
        [-0.4, eight_fifteenths, 0, -0.1333333333],
        [0, 0, 0, 0],
    ]
    advantages_BT = RLOO().advantages(one_token_each(rewards_PG))
    torch.testing.assert_close(
        advantages_BT.reshape(3, 4), torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12
    )


def test_two_completions_are_each_others_baseline():
    advantages_B1 = RLOO().advantages(one_token_each(torch.tensor([[0.9, 0.2]], dtype=torch.float64)))
    assert advantages_B1.flatten().tolist() == pytest.approx([0.7, -0.7])


def test_worked_advantages_with_kl(t, assert_ragged):
    """R = [1, 0, 0.5, 0.25] with a KL weight of 0.1: the penalised rewards are [1.005, 0, 0.48, 0.31]. The
    leave-one-out mean follows."""
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
    )
    a = [0.7416666667, -0.5983333333, 0.04166666667, -0.185]
    assert_ragged(RLOO(kl_coef=0.1).advantages(experience), [[a[0]] * 3, [a[1]] * 2, [a[2]] * 4, [a[3]]])


def test_equal_rewards_have_signal_when_the_kl_differs(t):
    experience = Experience.from_rewards(
        torch.full((1, 4), 0.1),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT.float(),
        ref_logprobs_BT=t.ref_BT.float(),
    )
    assert (RLOO().advantages(experience) == 0).all()
    assert (RLOO(kl_coef=0.1).advantages(experience)[t.mask_BT] != 0).all()


def test_worked_loss_without_clip(t, assert_ragged):
    """The loss is -A * logprobs, summed over tokens and averaged over the four completions."""
    logprobs_BT = t.logprobs_BT
    loss, _ = RLOO().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(-0.002, rel=1e-8)
    assert_ragged(logprobs_BT.grad, [[-0.3] * 3, [0.175] * 2, [-0.1] * 4, [0.375]])


def test_worked_loss_with_the_clip_of_whole_completions(t, assert_ragged):
    """Completions 1 and 2 have left the band in the direction of their own advantage, so they have no gradient."""
    logprobs_BT = t.logprobs_BT
    loss, metrics = RLOO(clip_low=0.2, clip_high=0.2).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(1.063674616, rel=1e-8)
    assert_ragged(logprobs_BT.grad, [[0, 0, 0], [0, 0], [-0.09231163464] * 4, [1.37598625]])
    assert float(metrics["clip_ratio/low_mean"]) == 0.25
    assert float(metrics["clip_ratio/high_mean"]) == 0.25
    assert float(metrics["policy/out_of_band"]) == 0.75


def test_on_policy_the_clip_changes_no_gradient(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    gradients = []
    for algorithm in (RLOO(), RLOO(clip_low=0.2, clip_high=0.2)):
        logprobs_BT = t.logprobs_BT
        algorithm.loss(logprobs_BT, batch, t.totals)[0].backward()
        gradients.append(logprobs_BT.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


def test_unscored_siblings_are_not_averaged_over():
    """Two of the five have no reward, so the baseline divides by the number of the other scored ones."""
    nan = float("nan")
    experience = one_token_each(torch.tensor([[1.0, nan, 0.0, 0.5, nan]], dtype=torch.float64))
    assert RLOO().advantages(experience).flatten().tolist() == pytest.approx([0.75, 0, -0.75, 0, 0])


def test_an_unscored_completion_leaves_the_loss(t):
    rewards_PG = torch.tensor([[1.0, 0.0, 0.5, float("nan")]], dtype=torch.float64)
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=t.mask_BT)
    batch = Batch.from_experience(experience, RLOO().advantages(experience))
    logprobs_BT = t.logprobs_BT
    loss, _ = RLOO().loss(logprobs_BT, batch, count_totals(batch))
    loss.backward()
    assert loss.item() == pytest.approx(-(0.75 * -1.75 - 0.75 * -3.0) / 3)
    assert logprobs_BT.grad[3].tolist() == [0, 0, 0, 0]


def test_with_gamma_a_token_is_credited_by_its_distance_from_the_end():
    experience = Experience.from_rewards(torch.tensor([[1.0, 0.0]]), completion_mask_BT=torch.ones(2, 3))
    assert RLOO(gamma=0.5).advantages(experience).tolist() == [[0.25, 0.5, 1.0], [-0.25, -0.5, -1.0]]
    with pytest.raises(ConfigError, match=r"gamma = 0.5 with clip_low and clip_high"):
        RLOO(gamma=0.5, clip_low=0.2, clip_high=0.2)


def test_half_a_clip_is_refused():
    with pytest.raises(ConfigError, match=r"clip_low = None, clip_high = 0.2; allowed: both numbers, or both None"):
        RLOO(clip_high=0.2)


def test_a_kl_without_log_probabilities_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)kl_coef > 0, but old or reference log-probabilities are missing"):
        RLOO(kl_coef=0.1).advantages(one_token_each(torch.tensor([[0.7, 0.1]])))


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match="rloo compares completions"):
        RLOO().advantages(one_token_each(torch.tensor([[0.7]])))
