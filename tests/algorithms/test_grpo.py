"""GRPO: worked numbers, the on-policy limit, groups without signal, and refusals."""

import math
from dataclasses import replace

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import GRPO
from posttrain.errors import ConfigError
from posttrain.functional.kl import k3
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Outputs, Totals, count_totals

GRADIENT_A3 = [
    [-0.1051271096, 0, -0.0904837418],
    [0, 0.09670245533],
    [-0.0255050335, -0.01947001958, -0.02904585607, -0.025],
    [1.37598625],
]


def one_token_each(rewards_PG: torch.Tensor) -> Experience:
    return Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))


def one_token_batch(*, old_prob: float, advantage: float) -> Batch:
    return Batch(
        completion_mask_BT=torch.tensor([[True]]),
        advantages_BT=torch.tensor([[advantage]]),
        old_logprobs_BT=torch.tensor([[old_prob]]).log(),
        groups_B=torch.tensor([0]),
    )


# Advantages


def test_the_only_correct_completion_of_four_gets_three_halves():
    experience = one_token_each(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))  # mean 1/4, std 1/2 (dividing by G - 1)
    expected_B1 = torch.tensor([[1.5], [-0.5], [-0.5], [-0.5]])
    torch.testing.assert_close(GRPO().advantages(experience), expected_B1, atol=1e-5, rtol=0)


@catalogue("dtype, rtol", [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_worked_advantages(rewards_PG, dtype: torch.dtype, rtol: float):
    expected = [
        [0.8660239038, -0.8660239038, -0.8660239038, 0.8660239038],
        [-1.019045869, 1.358727826, 0, -0.3396819564],
        [0, 0, 0, 0],
    ]
    advantages_BT = GRPO().advantages(one_token_each(rewards_PG.to(dtype)))
    torch.testing.assert_close(
        advantages_BT.reshape(3, 4), torch.tensor(expected, dtype=dtype), rtol=rtol, atol=1e-7 if rtol > 1e-6 else 1e-12
    )


def test_the_advantage_stands_on_every_trained_token_and_nowhere_else():
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        completion_mask_BT=torch.tensor([[0, 1, 1, 0], [0, 1, 0, 1]]),
    )
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    expected_BT = torch.tensor([[0, a, a, 0], [0, -a, 0, -a]], dtype=torch.float64)
    torch.testing.assert_close(GRPO().advantages(experience), expected_BT, rtol=1e-12, atol=0)


def test_an_unscored_completion_is_as_if_it_had_not_been_sampled():
    with_it = one_token_each(torch.tensor([[1.0, float("nan"), 0.0, 0.5]], dtype=torch.float64))
    without = one_token_each(torch.tensor([[1.0, 0.0, 0.5]], dtype=torch.float64))
    advantages_B1 = GRPO().advantages(with_it)
    assert advantages_B1[1].item() == 0
    torch.testing.assert_close(advantages_B1[[0, 2, 3]], GRPO().advantages(without))
    assert count_totals(Batch.from_experience(with_it, advantages_B1)) == Totals(tokens=3, sequences=3, rows=4)


def test_a_group_with_fewer_than_two_scored_completions_gets_zero():
    nan = float("nan")
    advantages_B1 = GRPO().advantages(one_token_each(torch.tensor([[0.7, nan], [nan, nan]])))
    assert advantages_B1.flatten().tolist() == [0, 0, 0, 0]


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)group_size = 1, but grpo compares.*at least 2.*algorithm reinforce"):
        GRPO().advantages(one_token_each(torch.tensor([[0.7]])))


# Loss


@catalogue("advantage, expected_loss", [(+1.0, -1.2), (-1.0, +1.5)])
def test_clipping_caps_a_gain_but_not_a_penalty(advantage: float, expected_loss: float):
    """The ratio rose to 1.5 with clip_high 0.2. A gain counts 1.2 times, a penalty its full 1.5 times."""
    batch = one_token_batch(old_prob=0.50, advantage=advantage)
    loss, _ = GRPO().loss(torch.tensor([[math.log(0.75)]]), batch, count_totals(batch))
    assert loss.item() == pytest.approx(expected_loss)


def test_worked_loss_and_gradient(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    loss, _ = GRPO().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(1.128056945, rel=1e-8)
    assert_ragged(logprobs_BT.grad, GRADIENT_A3)


def test_worked_loss_in_float32(t):
    batch = t.batch()
    as_float32 = {
        name: getattr(batch, name).float() for name in ("advantages_BT", "old_logprobs_BT", "ref_logprobs_BT")
    }
    batch = Batch(completion_mask_BT=batch.completion_mask_BT, groups_B=batch.groups_B, **as_float32)
    loss, _ = GRPO(kl_coef=0.04).loss(t.logprobs_BT.float(), batch, t.totals)
    assert loss.item() == pytest.approx(1.131242803, rel=1e-5)


def test_worked_dual_clip(t):
    logprobs_BT = t.logprobs_BT
    loss, metrics = GRPO(dual_clip=3.0).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.8770706947, rel=1e-8)
    assert logprobs_BT.grad[3].tolist() == [0, 0, 0, 0]
    assert float(metrics["policy/dual_clip_fraction"]) == pytest.approx(0.1)


def test_a_masked_completion_leaves_loss_and_denominator(t):
    batch = t.batch(without_rows=[3])
    loss, _ = GRPO().loss(t.logprobs_BT, batch, count_totals(batch))
    assert loss.item() == pytest.approx(-0.330572407, rel=1e-8)


def test_worked_kl(t, assert_ragged):
    """With a KL weight of 0.04: pathwise k3, and the corrected form with the same value and the gradient rho *
    delta."""
    policy_gradient = torch.autograd.grad(GRPO().loss(lp := t.logprobs_BT, t.batch(), t.totals)[0], lp)[0]
    for estimator in ("k3", "k3_corrected"):
        logprobs_BT = t.logprobs_BT
        loss, metrics = GRPO(kl_coef=0.04, kl_estimator=estimator).loss(logprobs_BT, t.batch(), t.totals)
        assert loss.item() == pytest.approx(1.131242803, rel=1e-8)
        assert float(metrics["kl"]) == pytest.approx(0.05115298934, rel=1e-8)
    loss.backward()  # gradient of the corrected form
    rho_delta = [
        [0.1576906645, 0.1349858808, -0.0452418709],
        [-0.335160023, 0.2210341836],
        [0.1224241608, -0.2725802741, 0.406641985, 0],
        [2.568507667],
    ]
    assert_ragged(
        (logprobs_BT.grad - policy_gradient) * 4 / 0.04 * t.mask_BT.sum(dim=-1, keepdim=True),  # undo A3
        rho_delta,
    )


def test_worked_kl_as_a_product_with_the_ratio(t):
    """TRL and DeepSeek-V3.2 log this value. The same functions compute it, with rho * k3 instead of k3."""
    ratio_BT = token_ratio(t.logprobs_BT, t.old_BT)
    loss_BT = clipped_surrogate(ratio_BT, t.advantages_BT, 0.2, 0.2) + 0.04 * ratio_BT * k3(t.logprobs_BT, t.ref_BT)
    assert sequence_mean(loss_BT, t.mask_BT, sequences=4).item() == pytest.approx(1.136246295, rel=1e-8)


def test_worked_metrics(t):
    _, metrics = GRPO().loss(t.logprobs_BT, t.batch(), t.totals)
    expected = {
        "clip_ratio/low_mean": 0.1,
        "clip_ratio/high_mean": 0.1,
        "clip_ratio/region_mean": 0.2,
        "policy/out_of_band": 0.4,
        "policy/approx_kl_k1": -0.117,
        "policy/approx_kl_k2": 0.102395,
        "policy/approx_kl_k3": 0.154159132,
        "policy/ratio_mean": 1.271159132,
        "policy/ratio_min": 0.670320046,
        "policy/ratio_max": 3.669296668,
        "policy/ratio_std": 0.8197094048,
        "kl": 0.05115298934,
    }
    assert {name: float(metric) for name, metric in metrics.items()} == pytest.approx(expected, rel=1e-8)


def test_the_entropy_bonus_is_a_mean_over_tokens_whatever_the_policy_term_is(t):
    entropy_BT = torch.full_like(t.old_BT, 0.7).requires_grad_()
    outputs = Outputs(logprobs_BT=t.logprobs_BT, entropy_BT=entropy_BT)
    loss, metrics = GRPO(entropy_coef=0.1).loss(outputs, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(1.128056945 - 0.1 * 0.7, rel=1e-8)
    assert float(metrics["entropy"]) == pytest.approx(0.7)
    torch.testing.assert_close(entropy_BT.grad, -0.1 / 10 * t.mask_BT.double(), rtol=1e-12, atol=0)


# Limits


def test_on_policy_the_loss_is_minus_the_advantages_and_the_gradient_reinforce(t):
    """With ratio 1 and any clip, the value is -A3(A), the gradient -A / (N T_i), and nothing is clipped. This holds
    whether the old log-probabilities are passed or implied."""
    without_old = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    with_old = Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=t.advantages_BT,
        old_logprobs_BT=t.logprobs_BT.detach(),
        groups_B=t.batch().groups_B,
    )
    expected_BT = -t.advantages_BT / (4 * t.mask_BT.sum(dim=-1, keepdim=True))
    for batch in (without_old, with_old):
        for algorithm in (GRPO(), GRPO(dual_clip=3.0), GRPO(clip_low=0.0, clip_high=0.0)):
            logprobs_BT = t.logprobs_BT
            loss, metrics = algorithm.loss(logprobs_BT, batch, t.totals)
            loss.backward()
            assert loss.item() == pytest.approx(-sum(t.advantages) / 4)
            torch.testing.assert_close(logprobs_BT.grad[t.mask_BT], expected_BT[t.mask_BT], rtol=1e-12, atol=0)
            assert float(metrics["clip_ratio/region_mean"]) == 0
            assert float(metrics["policy/ratio_max"]) == 1


def test_groups_without_signal_still_feel_the_kl(t):
    batch = t.batch()
    batch = Batch(
        completion_mask_BT=batch.completion_mask_BT,
        advantages_BT=torch.zeros_like(t.old_BT),
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
        groups_B=batch.groups_B,
    )
    loss, _ = GRPO(kl_coef=1.0).loss(t.logprobs_BT, batch, t.totals)
    assert loss.item() == pytest.approx(0.07964645785, rel=1e-8)


# Refusals


def test_a_kl_without_a_reference_is_refused():
    batch = one_token_batch(old_prob=0.5, advantage=1.0)
    with pytest.raises(
        ConfigError, match=r"(?s)kl_coef > 0, but there are no reference log-probabilities.*kl_coef = 0"
    ):
        GRPO(kl_coef=0.1).loss(torch.tensor([[-0.5]]), batch, count_totals(batch))


def test_k1_in_the_loss_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)'k1' in the loss: its expected gradient is zero.*k3_corrected"):
        GRPO(kl_coef=0.1, kl_estimator="k1")


def test_an_entropy_bonus_without_entropy_is_refused():
    batch = one_token_batch(old_prob=0.5, advantage=1.0)
    with pytest.raises(ConfigError, match=r"(?s)entropy_coef = 0.1, but the forward pass gave no entropy.*entropy_BT"):
        GRPO(entropy_coef=0.1).loss(torch.tensor([[-0.5]]), batch, count_totals(batch))


def test_a_batch_without_advantages_is_refused():
    batch = Batch(completion_mask_BT=torch.tensor([[True]]), groups_B=torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"(?s)without advantages.*Batch.from_experience"):
        GRPO().loss(torch.tensor([[-0.5]]), batch, count_totals(batch))


# Only the tokens with the largest entropy


def test_only_the_top_share_by_entropy_has_a_policy_term_and_the_denominator_stays(t):
    """Of ten entropies from 0.1 to 1.0 the 0.8-quantile is 0.82. The two tokens above it are kept, like in TRL."""
    entropy_BT = torch.full((4, 4), 9.0, dtype=torch.float64)
    entropy_BT[t.mask_BT] = torch.arange(1, 11, dtype=torch.float64) / 10
    batch, logprobs_BT = t.batch(), t.logprobs_BT
    algorithm = GRPO(top_entropy_quantile=0.2, kl_coef=0.04)
    assert "current_entropy" in algorithm.needs
    outputs = Outputs(logprobs_BT, entropy_BT=entropy_BT)
    loss, _ = algorithm.loss(outputs, batch, t.totals)
    kept_BT = t.mask_BT & (entropy_BT > 0.85)
    assert kept_BT.sum() == 2
    bare = GRPO(kl_coef=0.04)
    without = Batch(**{**vars(batch), "advantages_BT": batch.advantages_BT.masked_fill(~kept_BT, 0.0)})
    assert loss.item() == pytest.approx(bare.loss(t.logprobs_BT, without, t.totals)[0].item(), rel=1e-12)
    prepared = algorithm.prepare(replace(batch, current_entropy_BT=entropy_BT))
    assert torch.equal(prepared.kept_BT, kept_BT)
    parts = [algorithm.loss(logprobs_BT[i], prepared.rows(i), t.totals)[0] for i in ([0, 1], [2, 3])]
    assert float(sum(parts)) == pytest.approx(loss.item(), rel=1e-12)


def test_the_share_of_a_part_is_not_taken_for_that_of_the_update(t):
    algorithm, part = GRPO(top_entropy_quantile=0.5), t.batch().rows([0, 1])
    outputs = Outputs(t.logprobs_BT[:2], entropy_BT=torch.rand(2, 4, dtype=torch.float64))
    with pytest.raises(ConfigError, match=r"(?s)some rows of an update.*with current_entropy_BT in it"):
        algorithm.loss(outputs, part, t.totals)
    with pytest.raises(ConfigError, match=r"top_entropy_quantile = 0.5, but no entropy of the tokens"):
        algorithm.loss(t.logprobs_BT, t.batch(), t.totals)
    with pytest.raises(ConfigError, match=r"top_entropy_quantile = 0.0; allowed: greater than 0"):
        GRPO(top_entropy_quantile=0.0)
