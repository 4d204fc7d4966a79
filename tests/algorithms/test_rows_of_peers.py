"""MaxRL, DRO and verl's pass@k: algorithms of other libraries that are rows of choices here."""

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import DRO, ComposedPolicyGradient, GRPOPassK, MaxRL, PolicyGradient
from posttrain.errors import ConfigError
from posttrain.types import Experience, count_totals


def advantages(algorithm: PolicyGradient, rewards_PG: Tensor) -> list[list[float]]:
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))
    return algorithm.advantages(experience).reshape(rewards_PG.shape).tolist()


def test_maxrl_divides_by_the_share_of_right_answers():
    rewards_PG = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
    expected = [[3, -1, -1, -1], [1, -1, -1, 1], [0] * 4, [0] * 4]
    assert advantages(MaxRL(), rewards_PG) == [pytest.approx(row, rel=1e-5) for row in expected]


@catalogue("right", [1, 2, 3])
def test_maxrl_is_the_mean_score_of_the_right_answers_minus_that_of_all(right):
    """This is the paper's estimator. Its expectation is the gradient of log p, up to terms of order (1 - p)^G."""
    rewards_PG = (torch.arange(4) < right).double()[None]
    scores_G = torch.tensor([0.3, -1.1, 0.7, 2.0], dtype=torch.float64)
    estimate = (torch.tensor(advantages(MaxRL(), rewards_PG)[0]) * scores_G).mean()
    assert float(estimate) == pytest.approx(float(scores_G[:right].mean() - scores_G.mean()), rel=1e-5)


def test_maxrl_refuses_rewards_whose_mean_is_no_probability():
    with pytest.raises(ConfigError, match="prompts have a negative mean reward; allowed: rewards of at least 0"):
        advantages(MaxRL(), torch.tensor([[-1.0, 0.0, -1.0, 1.0]]))


def test_worked_loss_of_dro(t):
    """A group has rewards 1, 0, 0.5 and 0.25, tau is 0.5, and the loss is the mean over fixture T's ten tokens."""
    mask_BT = t.mask_BT
    rewards_PG = torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64)
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=mask_BT, old_logprobs_BT=t.old_BT)
    batch = DRO(tau=0.5).to_batch(experience)
    logprobs_BT = t.logprobs_BT
    loss, metrics = DRO(tau=0.5).loss(logprobs_BT, batch, count_totals(batch))
    d_BT = torch.where(mask_BT, t.logprobs_BT - t.old_BT, 0).detach()
    assert float(metrics["policy/squared_log_ratio"]) == pytest.approx(float(d_BT.square().sum()) / 10, rel=1e-8)
    a_B1 = torch.tensor([[0.5625], [-0.4375], [0.0625], [-0.1875]], dtype=torch.float64)
    by_hand = torch.where(mask_BT, -a_B1 * t.logprobs_BT.detach() + 0.25 * d_BT**2, 0).sum() / 10
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-12)
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    torch.testing.assert_close(gradient_BT, torch.where(mask_BT, (0.5 * d_BT - a_B1) / 10, 0))


def test_dro_of_the_reference(t):
    """This number is on file for the advantages of fixture T."""
    batch = t.batch()
    assert DRO(tau=0.5).loss(t.logprobs_BT, batch, t.totals)[0].item() == pytest.approx(0.0503975, rel=1e-6)


def test_verls_pass_at_k_raises_the_best_alone(rewards_PG):
    expected = [[0] * 4, [0, 1.358727826, 0, 0], [0] * 4]
    assert advantages(GRPOPassK(), rewards_PG) == [pytest.approx(row, rel=1e-8) for row in expected]


def test_the_lead_without_a_deviation_is_a_row_of_the_open_composition(rewards_PG):
    lead = ComposedPolicyGradient(baseline="runner_up", normalisation="none")
    assert advantages(lead, rewards_PG)[1] == pytest.approx([0, 0.4, 0, 0])
    unscored_PG = rewards_PG[1:2].clone()
    unscored_PG[0, 2] = float("nan")
    assert advantages(lead, unscored_PG)[0] == pytest.approx([0, 0.5, 0, 0]), "0.9 leads 0.4 now"
    assert advantages(lead, torch.tensor([[1.0, float("nan")]])) == [[0, 0]], "there is no other answer to lead"


@catalogue("algorithm", [MaxRL(), DRO(), GRPOPassK()])
def test_a_single_answer_has_nothing_to_be_compared_with(algorithm):
    with pytest.raises(ConfigError, match="compares completions of the same prompt"):
        advantages(algorithm, torch.ones(2, 1))
