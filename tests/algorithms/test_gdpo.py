"""GDPO: rewards normalised one by one, their weights, rewards that do not apply, and refusals."""

import pytest
import torch

from posttrain.algorithms import GDPO, GRPO
from posttrain.errors import ConfigError
from posttrain.types import Experience

NAN = float("nan")
SEVERAL_KPG = torch.tensor(
    [[[1, 0, 0, 1], [0, 0, 1, 0]], [[0.1, 0.9, 0.5, 0.3], [0.2, 0.2, 0.4, 0.8]]], dtype=torch.float64
)


def one_token_each(rewards_KPG: torch.Tensor, weights: list[float] | None = None) -> Experience:
    rewards_PG = rewards_KPG.nansum(dim=0)
    return Experience.from_rewards(
        rewards_PG,
        completion_mask_BT=torch.ones(rewards_PG.numel(), 1),
        rewards_KPG=rewards_KPG,
        reward_weights_K=None if weights is None else torch.tensor(weights, dtype=rewards_KPG.dtype),
    )


def test_worked_advantages():
    """The epsilon is 1e-6 in both places. The reference prints the values for 1e-4
    (tests/functional/test_baselines.py)."""
    advantages_PG = GDPO().advantages(one_token_each(SEVERAL_KPG)).reshape(2, 4)
    z_KPG = (SEVERAL_KPG - SEVERAL_KPG.mean(dim=-1, keepdim=True)) / (SEVERAL_KPG.std(dim=-1, keepdim=True) + 1e-6)
    total_PG = z_KPG.sum(dim=0)
    torch.testing.assert_close(advantages_PG, (total_PG - total_PG.mean()) / (total_PG.std() + 1e-6), rtol=1e-8, atol=0)
    printed = [
        [-0.1593561076, 0.453584685, -0.7233296245, 0.4291010472],
        [-1.213123913, -1.213123913, 1.507612694, 0.9186351319],
    ]
    torch.testing.assert_close(advantages_PG, torch.tensor(printed, dtype=torch.float64), rtol=1e-3, atol=0)


def test_weights_act_after_the_normalisation():
    """The scale of a reward therefore has no effect, while its weight does."""
    weighted = GDPO().advantages(one_token_each(SEVERAL_KPG, [1.0, 0.25]))
    scaled_KPG = SEVERAL_KPG * torch.tensor([1.0, 50.0], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(GDPO().advantages(one_token_each(scaled_KPG, [1.0, 0.25])), weighted, rtol=1e-4, atol=0)
    assert (weighted - GDPO().advantages(one_token_each(SEVERAL_KPG))).abs().max() > 0.1


def test_answers_that_differ_in_one_reward_each_are_told_apart():
    """GRPO sees the sums [2, 1, 1, 1], so it cannot tell a missed rare reward from a missed common one."""
    rewards_KPG = torch.tensor([[[1, 1, 1, 0]], [[1, 0, 0, 1]]], dtype=torch.float64)
    experience = one_token_each(rewards_KPG)
    grpo, gdpo = GRPO().advantages(experience).flatten(), GDPO().advantages(experience).flatten()
    assert grpo[1].item() == pytest.approx(grpo[3].item())
    assert gdpo[1].item() != pytest.approx(gdpo[3].item(), abs=0.1)


def test_with_one_reward_it_is_grpo_on_the_scale_of_the_batch():
    experience = one_token_each(SEVERAL_KPG[1:])
    grpo, gdpo = GRPO().advantages(experience), GDPO().advantages(experience)
    torch.testing.assert_close(gdpo, grpo / (grpo.std() + 1e-6), rtol=1e-8, atol=0)


def test_a_reward_that_applies_to_nothing_is_as_if_it_were_not_there():
    nothing_1PG = torch.full((1, 2, 4), NAN, dtype=torch.float64)
    with_it = one_token_each(torch.cat([SEVERAL_KPG, nothing_1PG]))
    assert torch.equal(GDPO().advantages(with_it), GDPO().advantages(one_token_each(SEVERAL_KPG)))


def test_worked_loss(t):
    """The loss is GRPO's: mean over the tokens of a completion, then over completions."""
    loss, _ = GDPO(kl_coef=0.04).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(1.131242803, rel=1e-8)


def test_without_the_parts_of_the_reward_it_says_what_to_pass():
    experience = Experience.from_rewards(torch.tensor([[1.0, 0.0]]), completion_mask_BT=torch.ones(2, 1))
    with pytest.raises(ConfigError, match=r"(?s)has only their sum.*rewards_KPG"):
        GDPO().advantages(experience)


def test_a_group_of_one_and_k1_in_the_loss_are_refused():
    with pytest.raises(ConfigError, match="gdpo compares completions"):
        GDPO().advantages(one_token_each(SEVERAL_KPG[:, :, :1]))
    with pytest.raises(ConfigError, match="expected gradient is zero"):
        GDPO(kl_estimator="k1")
