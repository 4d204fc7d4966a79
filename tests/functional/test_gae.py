"""GAE and the value loss: worked numbers, both limits of lambda, tool output between tokens, and empty rows."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.functional.baselines import place_on_last_token, return_to_go, whiten
from posttrain.functional.gae import gae, outside_value_clip, value_loss
from posttrain.functional.kl import k1

NAN = float("nan")


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


OLD, REF = row(-0.5, -1.2, -0.3, -0.9), row(-0.6, -1.0, -0.35, -1.1)
VALUES = row(0.2, 0.5, 0.4, 0.9)
ALL = torch.ones(1, 4, dtype=torch.bool)
REWARDS = place_on_last_token(torch.tensor([1.5], dtype=torch.float64), ALL) - 0.1 * k1(OLD, REF)
RETURNS = gae(REWARDS, VALUES, ALL, 1.0, 0.95)[1]


def assert_printed(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, row(*expected), rtol=1e-8, atol=1e-12)


@catalogue(
    "gamma, lam, advantages",
    [
        (1.0, 0.95, (1.158015, 0.9137, 1.046, 0.58)),
        (0.99, 0.9, (1.006243989, 0.80947698, 1.00278, 0.58)),
        (1.0, 1.0, (1.285, 0.995, 1.075, 0.58)),
        (1.0, 0.0, (0.29, -0.08, 0.495, 0.58)),
    ],
)
def test_worked_advantages(gamma: float, lam: float, advantages: tuple[float, ...]):
    assert_printed(REWARDS, -0.01, 0.02, -0.005, 1.48)
    advantages_BT, returns_BT = gae(REWARDS, VALUES, ALL, gamma, lam)
    assert_printed(advantages_BT, *advantages)
    torch.testing.assert_close(returns_BT - VALUES, advantages_BT, rtol=1e-12, atol=1e-15)


def test_worked_whitening():
    advantages_BT, _ = gae(REWARDS, VALUES, ALL, 1.0, 0.95)
    assert_printed(whiten(advantages_BT, ALL), 0.9328823797, -0.04284782101, 0.4855237712, -1.37555833)
    as_openrlhf_BT = whiten(advantages_BT, ALL, population=True)
    assert_printed(as_openrlhf_BT, 1.077199872, -0.04947640594, 0.5606346047, -1.588358071)
    restored_BT = whiten(advantages_BT, ALL, mean="restore")
    assert_printed(restored_BT, 1.85731113, 0.881580929, 1.409952521, -0.4511295799)


def test_tool_output_in_between_neither_discounts_nor_counts():
    """Its rewards and values are never read. The token after it counts as the policy's next token (RULE 17)."""
    rewards_BT, values_BT = row(-0.01, 0.02, NAN, NAN, 1.4), row(0.2, 0.5, NAN, NAN, 0.9)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, torch.tensor([[1, 1, 0, 0, 1]]).bool(), 1.0, 0.95)
    assert_printed(advantages_BT, 1.14025, 0.895, 0, 0, 0.5)
    assert_printed(returns_BT, 1.34025, 1.395, 0, 0, 1.4)


@catalogue("gamma", [1.0, 0.9])
def test_the_two_ends_of_lambda(gamma: float):
    """With lambda = 1 the advantage is return minus value, with lambda = 0 the one-step temporal difference."""
    torch.manual_seed(0)
    rewards_BT, values_BT = torch.randn(2, 5, 7, dtype=torch.float64)
    mask_BT = torch.rand(5, 7) < 0.7
    full_BT, _ = gae(rewards_BT, values_BT, mask_BT, gamma, 1.0)
    expected_BT = torch.where(mask_BT, return_to_go(rewards_BT, mask_BT, gamma) - values_BT, 0.0)
    torch.testing.assert_close(full_BT, expected_BT)
    one_step_BT, _ = gae(rewards_BT, values_BT, mask_BT, gamma, 0.0)
    for b in range(5):
        trained = mask_BT[b].nonzero().flatten().tolist()
        for t, after in zip(trained, [*trained[1:], None], strict=True):
            ahead = 0.0 if after is None else float(values_BT[b, after])
            expected = float(rewards_BT[b, t] - values_BT[b, t]) + gamma * ahead
            assert float(one_step_BT[b, t]) == pytest.approx(expected, rel=1e-12)


def test_a_row_without_trained_tokens_has_zeros():
    advantages_BT, returns_BT = gae(row(NAN, NAN), row(NAN, NAN), torch.zeros(1, 2, dtype=torch.bool), 1.0, 0.95)
    assert advantages_BT.tolist() == returns_BT.tolist() == [[0.0, 0.0]]
    assert gae(torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(2, 0).bool(), 1.0, 1.0)[0].shape == (2, 0)


@catalogue(
    "value_clip, loss, fraction", [(0.2, 0.4351972413, 0.5), (0.5, 0.3882622413, 0.0), (None, 0.3882622413, 0.0)]
)
def test_worked_value_loss(value_clip: float | None, loss: float, fraction: float):
    values_BT = row(0.35, 0.9, 0.1, 1.6)
    assert float(value_loss(values_BT, VALUES, RETURNS, value_clip).mean()) == pytest.approx(loss, rel=1e-8)
    if value_clip is not None:
        assert float(outside_value_clip(values_BT, VALUES, RETURNS, value_clip).double().mean()) == fraction


def test_where_the_clipped_branch_is_larger_a_value_has_no_gradient():
    values_BT = row(0.35, 0.9, 0.1, 1.6).requires_grad_()
    value_loss(values_BT, VALUES, RETURNS, 0.2).sum().backward()
    moving_BT = ~outside_value_clip(values_BT, VALUES, RETURNS, 0.2)
    assert values_BT.grad is not None
    torch.testing.assert_close(values_BT.grad, torch.where(moving_BT, values_BT.detach() - RETURNS, 0.0))
