"""KL estimators: values and gradients of the worked examples, exact expectations over two outcomes, and the bounds."""

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.functional.kl import KL_ESTIMATORS, k1, k2, k3, kl_estimate
from posttrain.functional.masks import masked
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import sequence_mean, token_mean

K3_PER_TOKEN = [
    [0.01070797643, 0.004837418036, 0.001271096376],
    [0.1487212707, 0.01873075308],
    [0.006920436717, 0.06906754859, 0.05468808972, 0],
    [0.1965853038],
]
GRADIENT_K2 = [[0.15, 0.1, -0.05], [-0.5, 0.2], [0.12, -0.35, 0.35, 0], [0.7]]
GRADIENT_K3 = [
    [0.1392920236, 0.09516258196, -0.05127109638],
    [-0.6487212707, 0.1812692469],
    [0.1130795633, -0.4190675486, 0.2953119103, 0],
    [0.5034146962],
]
GRADIENT_RHO_K3 = [
    [0.1576906645, 0.1349858808, -0.0452418709],
    [-0.335160023, 0.2210341836],
    [0.1224241608, -0.2725802741, 0.406641985, 0],
    [2.568507667],
]


# Two outcomes, exactly


def two_outcomes() -> tuple[Tensor, Tensor, Tensor]:
    """Return one logit theta, and both outcomes' log-probabilities under policy [0.7, 0.3] and reference [0.4, 0.6]."""
    theta = torch.tensor(0.7 / 0.3, dtype=torch.float64).log().requires_grad_()
    policy_V = torch.stack([theta.sigmoid().log(), (-theta).sigmoid().log()])
    return theta, policy_V, torch.tensor([0.4, 0.6], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("k1", [0.5596157879, -0.6931471806], 0.1837868974),
        ("k2", [0.1565849151, 0.240226507], 0.1816773926),
        ("k3", [0.1310443594, 0.3068528194], 0.1837868974),
    ],
)
def test_values_over_two_outcomes(name: str, values: list[float], expected: float):
    """KL(policy || reference) is 0.1837868974: k1 and k3 are unbiased, and k2 is not."""
    _, policy_V, ref_V = two_outcomes()
    estimates_V = kl_estimate(name, policy_V, ref_V)
    assert estimates_V.tolist() == pytest.approx(values, rel=1e-8)
    assert (policy_V.exp() * estimates_V).sum().item() == pytest.approx(expected, rel=1e-8)


@catalogue(
    "name, expected",
    [
        ("k1", 0.0),
        ("k2", 0.2630802234),
        ("k3", 0.3),
        ("k1_corrected", 0.2630802234),
        ("k2_corrected", 0.2630802234),
        ("k3_corrected", 0.2630802234),
    ],
)
def test_gradients_over_two_outcomes(name: str, expected: float):
    """The gradient of KL(policy || reference) is 0.2630802234. Pathwise k3 gives that of KL(reference || policy),
    0.3."""
    theta, policy_V, ref_V = two_outcomes()
    estimate = (policy_V.detach().exp() * kl_estimate(name, policy_V, ref_V)).sum()
    assert torch.autograd.grad(estimate, theta)[0].item() == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("name", ["k1_corrected", "k2_corrected", "k3_corrected"])
def test_the_corrected_gradient_holds_off_policy(name: str):
    """The outcomes come from another policy, [0.5, 0.5]. The ratio gives the same expectation."""
    theta, policy_V, ref_V = two_outcomes()
    old_V = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    estimate = (old_V.exp() * kl_estimate(name, policy_V, ref_V, old_V)).sum()
    assert torch.autograd.grad(estimate, theta)[0].item() == pytest.approx(0.2630802234, rel=1e-8)


# Fixture T


@pytest.mark.parametrize(
    ("estimator", "per_token", "per_sequence"),
    [(k1, 0.072, 0.1616666667), (k2, 0.05372, 0.08893958333), (k3, 0.05115298934, 0.07964645785)],
)
def test_means_of_fixture_t(t, estimator, per_token: float, per_sequence: float):
    kl_BT = estimator(t.logprobs_BT, t.ref_BT)
    assert token_mean(kl_BT, t.mask_BT, tokens=10).item() == pytest.approx(per_token, rel=1e-8)
    assert sequence_mean(kl_BT, t.mask_BT, sequences=4).item() == pytest.approx(per_sequence, rel=1e-8)


def test_values_of_fixture_t(t, assert_ragged):
    per_sequence_B1 = masked(k1(t.logprobs_BT, t.ref_BT), t.mask_BT).sum(dim=-1, keepdim=True)
    assert_ragged(per_sequence_B1, [[0.2], [-0.3], [0.12], [0.7]])
    assert_ragged(masked(k3(t.logprobs_BT, t.ref_BT), t.mask_BT), K3_PER_TOKEN)
    weighted_BT = token_ratio(t.logprobs_BT, t.old_BT) * k3(t.logprobs_BT, t.ref_BT)
    assert token_mean(weighted_BT, t.mask_BT, tokens=10).item() == pytest.approx(0.09850468808, rel=1e-8)


def gradient_of_sum(t, estimate) -> Tensor:
    logprobs_BT = t.logprobs_BT
    inside = (masked(x, t.mask_BT) for x in (logprobs_BT, t.ref_BT, t.old_BT))
    return torch.autograd.grad(estimate(*inside).sum(), logprobs_BT)[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k2", GRADIENT_K2),
        ("k3", GRADIENT_K3),
        ("k1_corrected", GRADIENT_RHO_K3),
        ("k2_corrected", GRADIENT_RHO_K3),
        ("k3_corrected", GRADIENT_RHO_K3),
    ],
)
def test_gradients_of_fixture_t(t, assert_ragged, name: str, expected):
    gradient_BT = gradient_of_sum(t, lambda new, ref, old: kl_estimate(name, new, ref, old))
    assert_ragged(gradient_BT, expected)


def test_k3_times_a_differentiable_ratio_has_the_corrected_gradient(t, assert_ragged):
    """The identity is d/dl [rho (exp(-delta) - 1 + delta)] = rho delta, in the form that TRL and DeepSeek-V3.2 use."""
    gradient_BT = gradient_of_sum(t, lambda new, ref, old: token_ratio(new, old) * k3(new, ref))
    assert_ragged(gradient_BT, GRADIENT_RHO_K3)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_correcting_the_gradient_keeps_the_value(t, name: str):
    plain_BT = kl_estimate(name, t.logprobs_BT, t.ref_BT)[t.mask_BT]
    corrected_BT = kl_estimate(f"{name}_corrected", t.logprobs_BT, t.ref_BT, t.old_BT)[t.mask_BT]
    assert torch.equal(plain_BT, corrected_BT)


# Bounds


def test_k3_of_a_large_difference_is_capped_at_10():
    """Without the cap, exp(12) - 1 - 12 = 162741.7914."""
    delta = torch.tensor(-12.0, dtype=torch.float64)
    assert (delta.neg().exp() - 1 + delta).item() == pytest.approx(162741.7914, rel=1e-8)
    assert k3(delta, torch.zeros_like(delta)).item() == 10.0


@catalogue("dtype", [torch.float32, torch.float64])
@catalogue("difference", [100.0, -100.0, -1e4])
@catalogue("name", [*KL_ESTIMATORS, *(f"{name}_corrected" for name in KL_ESTIMATORS)])
def test_a_difference_of_100_is_finite_in_value_and_gradient(name: str, difference: float, dtype: torch.dtype):
    logprobs = torch.full((2,), difference, dtype=dtype, requires_grad=True)
    zero = torch.zeros(2, dtype=dtype)
    value = kl_estimate(name, logprobs, zero, zero)
    value.sum().backward()
    assert value.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


def test_every_estimate_is_zero_at_the_reference():
    logprobs = torch.tensor([-0.3, -2.0])
    for name in KL_ESTIMATORS:
        assert (kl_estimate(name, logprobs, logprobs) == 0).all()


def test_k3_is_never_negative_in_float32():
    differences = torch.cat([torch.linspace(-1e-2, 1e-2, 100_001), torch.linspace(-20, 20, 10_001)])
    assert (k3(differences, torch.zeros(())) >= 0).all()
    tiny = torch.tensor(1e-3)
    assert k3(tiny, torch.zeros(())).item() == pytest.approx(k3(tiny.double(), torch.zeros(())).item(), rel=1e-3)
