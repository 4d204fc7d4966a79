"""SAPO: worked numbers, and a gradient that fades instead of being cut off."""

import pytest
import torch

from posttrain.algorithms import SAPO
from posttrain.errors import ConfigError
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import soft_gate


def test_worked_loss_and_gradient(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    loss, _ = SAPO().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.831572008, rel=1e-8)
    expected = [
        [-0.1050580523, -0.1309380998, -0.09027919728],
        [0.05693041957, 0.09640823994],
        [-0.02550243156, -0.01923378578, -0.02885650306, -0.025],
        [0.2966964088],
    ]
    assert_ragged(logprobs_BT.grad, expected)


def test_worked_mean_over_all_tokens(t):
    """AReaL takes this mean."""
    gate_BT = soft_gate(token_ratio(t.logprobs_BT, t.old_BT), t.advantages_BT, tau_pos=1.0, tau_neg=1.05)
    assert token_mean(-gate_BT * t.advantages_BT, t.mask_BT, 10).item() == pytest.approx(-0.2848271754, rel=1e-8)


def test_the_mean_gate(t):
    _, metrics = SAPO().loss(t.logprobs_BT, t.batch(), t.totals)
    gates = [2.051259868, 2.346333359, 1.904909168, 1.578335089, 2.009826076]
    gates += [2.020200653, 1.779698315, 2.161481958, 2, 3.591713783]
    assert float(metrics["policy/gate_mean"]) == pytest.approx(sum(gates) / 10, rel=1e-8)


def test_each_temperature_is_for_its_own_sign(t):
    def gradient(**settings: float) -> torch.Tensor:
        logprobs_BT = t.logprobs_BT
        SAPO(**settings).loss(logprobs_BT, t.batch(), t.totals)[0].backward()
        return logprobs_BT.grad.nan_to_num()

    gains, penalties = [0, 2], [1, 3]
    assert torch.equal(gradient(tau_pos=3.0)[penalties], gradient()[penalties])
    assert torch.equal(gradient(tau_neg=3.0)[gains], gradient()[gains])
    assert (gradient(tau_pos=3.0)[0, :3].abs() < gradient()[0, :3].abs()).all()
    assert gradient(tau_neg=3.0)[3, 0].abs() < gradient()[3, 0].abs()


def test_a_gate_without_a_slope_is_refused():
    with pytest.raises(ConfigError, match=r"sapo.tau_pos = 0.0; allowed: greater than 0"):
        SAPO(tau_pos=0.0)


def test_the_weight_of_the_gradient_rises_above_a_ratio_of_one_and_then_falls_to_zero():
    logprobs = torch.linspace(-6, 3, 9001, dtype=torch.float64).requires_grad_()
    ratio = logprobs.exp()
    soft_gate(ratio, torch.ones_like(ratio), tau_pos=1.0, tau_neg=1.05).sum().backward()
    assert logprobs.grad is not None
    ratio = ratio.detach()
    factor = logprobs.grad / ratio
    assert float(factor.max()) == pytest.approx(1)
    assert float(ratio[factor.argmax()]) == pytest.approx(1, rel=1e-3)
    assert float(logprobs.grad.max()) == pytest.approx(1.57, abs=0.01)
    assert float(ratio[logprobs.grad.argmax()]) == pytest.approx(2.06, abs=0.01)
    assert float(logprobs.grad[-1]) < 1e-6
