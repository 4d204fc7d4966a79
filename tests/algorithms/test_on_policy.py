"""If the policy is still the one that sampled, most of the family is one algorithm. The equalities are exact."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.algorithms.test_correction import SAMPLING
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import (
    CISPO,
    DAPO,
    DPPO,
    GMPO,
    GRPO,
    GSPO,
    REINFORCE,
    SAPO,
    VESPO,
    ClipCov,
    GSPOToken,
    KimiK2,
    KLCov,
    PolicyGradient,
)
from posttrain.types import Batch

MEAN_PER_COMPLETION = [GRPO(), GRPO(dual_clip=3.0), GSPO(), GSPOToken(), GMPO(), SAPO(tau_pos=1.0, tau_neg=2.0)]
MEAN_OVER_TOKENS = [DAPO(), DAPO(dual_clip=3.0), CISPO(), VESPO(), DPPO(), KLCov(penalty=0.0), ClipCov(cov_low=5.0)]


@pytest.fixture(params=["passed", "implied"])
def on_policy(t, request) -> Batch:
    return Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=t.advantages_BT,
        old_logprobs_BT=t.logprobs_BT.detach() if request.param == "passed" else None,
        groups_B=torch.zeros(4, dtype=torch.long),
    )


def gradient(t, algorithm: PolicyGradient, batch: Batch) -> Tensor:
    logprobs_BT = t.logprobs_BT
    algorithm.loss(logprobs_BT, batch, t.totals)[0].backward()
    assert logprobs_BT.grad is not None
    return logprobs_BT.grad


@catalogue("correction", ["tis", "icepop", "seq_tis", "decoupled"])
def test_one_weight_acts_alike_whether_the_ratio_is_of_a_token_or_of_the_completion(t, on_policy, correction):
    """The weight of a token scales that token's part of a sequence-level loss, and no other part."""
    batch = replace(on_policy, sampling_logprobs_BT=SAMPLING)
    expected_BT = gradient(t, GRPO(correction=correction), batch)
    weightless_BT = gradient(t, GRPO(correction="none"), on_policy)
    assert not torch.allclose(expected_BT, weightless_BT), "a correction without effect would pass this test"
    for algorithm in (GSPO(correction=correction), GSPOToken(correction=correction), GMPO(correction=correction)):
        torch.testing.assert_close(gradient(t, algorithm, batch), expected_BT, rtol=1e-12, atol=1e-12)


def test_a_rejected_token_gets_no_gradient_from_a_loss_of_whole_completions(t, on_policy):
    sampling_BT = SAMPLING.clone()
    sampling_BT[2, 1] = -30.0
    batch = replace(on_policy, sampling_logprobs_BT=sampling_BT)
    for algorithm in (GSPO(correction="icepop"), GMPO(correction="icepop"), KimiK2(correction="icepop")):
        assert gradient(t, algorithm, batch)[2, 1] == 0
        assert (gradient(t, algorithm, batch)[2, [0, 2, 3]] != 0).all()


@catalogue(
    "family, weight",
    [
        (MEAN_PER_COMPLETION, lambda t: 1 / (4 * t.mask_BT.double().sum(dim=-1, keepdim=True))),
        (MEAN_OVER_TOKENS, lambda t: 1 / 10),
        ([REINFORCE(baseline="none")], lambda t: 1 / 4),
    ],
    ids=["mean per completion", "mean over tokens", "sum per completion"],
)
def test_the_gradient_is_the_plain_policy_gradient_whatever_the_trust_region(t, on_policy, family, weight):
    """The gradient is -A / (N |m_i|), -A / sum |m| or -A / N: each family has REINFORCE's, with that average."""
    expected_BT = (-weight(t) * t.advantages_BT)[t.mask_BT]
    for algorithm in family:
        actual_BT = gradient(t, algorithm, on_policy)[t.mask_BT]
        torch.testing.assert_close(actual_BT, expected_BT, rtol=1e-12, atol=0, msg=lambda m, a=algorithm: f"{a}: {m}")


@catalogue(
    "algorithms, value",
    [
        ([GRPO(), GSPO(), GSPOToken(), GMPO()], -(1.2 - 0.7 + 0.4 - 1.5) / 4),
        ([DAPO(), DAPO(dual_clip=3.0), KLCov(), ClipCov(cov_low=5.0)], -(3 * 1.2 - 2 * 0.7 + 4 * 0.4 - 1.5) / 10),
        ([SAPO(tau_pos=1.0, tau_neg=1.0)], -2 * (1.2 - 0.7 + 0.4 - 1.5) / 4),
    ],
    ids=["mean per completion", "mean over tokens", "gate"],
)
def test_the_value_is_minus_the_mean_advantage(t, on_policy, algorithms: Sequence[PolicyGradient], value: float):
    for algorithm in algorithms:
        assert algorithm.loss(t.logprobs_BT, on_policy, t.totals)[0].item() == pytest.approx(value, rel=1e-12)


@catalogue("algorithm", [*MEAN_PER_COMPLETION, *MEAN_OVER_TOKENS], ids=lambda a: a.key)
def test_nothing_is_clipped_and_no_ratio_differs_from_1(t, on_policy, algorithm: PolicyGradient):
    _, metrics = algorithm.loss(t.logprobs_BT, on_policy, t.totals)
    numbers = {name: float(metric) for name, metric in metrics.items()}
    assert numbers["policy/ratio_mean"] == numbers["policy/ratio_min"] == numbers["policy/ratio_max"] == 1
    assert numbers["policy/ratio_std"] == 0
    stopping = ("clip_ratio/region_mean", "policy/out_of_band", "policy/weight_clip_fraction")
    assert all(numbers.get(name, 0) == 0 for name in stopping)
