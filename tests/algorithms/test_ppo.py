"""PPO: worked numbers from the reward to the loss, the first update, adaptive KL, reward shaping, and refusals."""

from dataclasses import replace

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import (
    GRPO,
    PPO,
    REINFORCE,
    RLOO,
    ComposedPolicyGradient,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
)
from posttrain.algorithms.critic import KLController
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, ExplainedVariance, Outputs, Spread, Totals, count_totals

GAE_095 = [1.158015, 0.9137, 1.046, 0.58]
RETURNS = [1.358015, 1.4137, 1.446, 1.48]
WHITE = [0.9328823797, -0.04284782101, 0.4855237712, -1.37555833]
NAN = float("nan")


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def one_answer(score: float = 1.5, **changes: Tensor | None) -> Experience:
    """Return one answer of four tokens with a score of 1.5, a critic's values and a reference."""
    experience = Experience.from_rewards(
        torch.tensor([[score]], dtype=torch.float64),
        completion_mask_BT=torch.ones(1, 4),
        old_logprobs_BT=row(-0.5, -1.2, -0.3, -0.9),
        ref_logprobs_BT=row(-0.6, -1.0, -0.35, -1.1),
        values_BT=row(0.2, 0.5, 0.4, 0.9),
    )
    return replace(experience, **changes)


def assert_printed(actual: Tensor | None, expected: list[float]) -> None:
    torch.testing.assert_close(actual, row(*expected), rtol=1e-8, atol=1e-12)


# Rewards, advantages, returns


@catalogue(
    "settings, advantages",
    [
        ({}, GAE_095),
        ({"gamma": 0.99, "gae_lambda": 0.9}, [1.006243989, 0.80947698, 1.00278, 0.58]),
        ({"gae_lambda": 1.0}, [1.285, 0.995, 1.075, 0.58]),
        ({"gae_lambda": 0.0}, [0.29, -0.08, 0.495, 0.58]),
        ({"whiten_advantages": True}, WHITE),
    ],
)
def test_worked_advantages_and_returns(settings: dict, advantages: list[float]):
    batch = PPO(**{"kl_coef": 0.1, "whiten_advantages": False} | settings).to_batch(one_answer())
    assert_printed(batch.advantages_BT, advantages)
    if not settings.get("whiten_advantages", False):
        assert_printed(batch.returns_BT, (row(*advantages) + row(0.2, 0.5, 0.4, 0.9))[0].tolist())
    else:
        assert_printed(batch.returns_BT, RETURNS)  # computed from the advantages before whitening


def test_worked_advantages_in_float32():
    experience = one_answer()
    names = ("rewards_PG", "old_logprobs_BT", "ref_logprobs_BT", "values_BT")
    narrow = replace(experience, **{name: getattr(experience, name).float() for name in names})
    torch.testing.assert_close(PPO(kl_coef=0.1).advantages(narrow), row(*WHITE).float(), rtol=1e-5, atol=1e-5)


def test_tool_output_is_skipped():
    experience = Experience.from_rewards(
        torch.tensor([[1.4]], dtype=torch.float64),
        completion_mask_BT=torch.tensor([[1, 1, 0, 0, 1]]),
        old_logprobs_BT=row(0.01, -0.02, NAN, NAN, 0.0),  # a KL of 1 * k1 gives token rewards -0.01, 0.02, 1.4
        ref_logprobs_BT=row(0.0, 0.0, NAN, NAN, 0.0),
        values_BT=row(0.2, 0.5, NAN, NAN, 0.9),
    )
    algorithm = PPO(kl_coef=1.0, whiten_advantages=False)
    assert_printed(algorithm.advantages(experience), [1.14025, 0.895, 0, 0, 0.5])


def test_whitened_rewards_keep_their_mean():
    """Token rewards 0 and 1 have mean 1/2 and std 1/sqrt(2), so they become 1/2 -+ 1/sqrt(2)."""
    experience = Experience.from_rewards(
        torch.tensor([[1.0]], dtype=torch.float64), completion_mask_BT=torch.ones(1, 2), values_BT=row(0, 0)
    )
    algorithm = PPO(kl_coef=0, whiten_rewards=True, whiten_advantages=False, gae_lambda=0.0)
    expected_BT = row(0.5 - 0.5**0.5, 0.5 + 0.5**0.5)
    torch.testing.assert_close(algorithm.advantages(experience), expected_BT, rtol=1e-7, atol=0)


def test_a_single_token_is_not_whitened():
    experience = Experience.from_rewards(
        torch.tensor([[1.0]]), completion_mask_BT=torch.tensor([[0, 1]]), values_BT=torch.tensor([[NAN, 0.25]])
    )
    assert PPO(kl_coef=0).advantages(experience).tolist() == [[0.0, 0.75]]


def test_empty_and_unscored_completions_get_nothing():
    experience = Experience.from_rewards(
        torch.tensor([[1.0, NAN, 2.0]]),
        completion_mask_BT=torch.tensor([[1, 1], [1, 1], [0, 0]]),
        values_BT=torch.full((3, 2), 0.5),
    )
    batch = PPO(kl_coef=0, whiten_advantages=False).to_batch(experience)
    assert batch.advantages_BT is not None
    assert batch.advantages_BT[1:].abs().sum() == 0
    assert batch.returns_BT is not None
    assert batch.returns_BT[1:].abs().sum() == 0
    assert count_totals(batch) == Totals(tokens=2, sequences=1, rows=3)


@catalogue(
    "settings, score",
    [
        ({}, 1.5),
        ({"score_clip": 1.2}, 1.2),
        ({"missing_eos_penalty": 0.4}, 1.1),
        ({"missing_eos_penalty": 4.0, "score_clip": 2.0}, -2.0),  # first the penalty, then the clip
    ],
)
def test_scores_are_shaped_before_anything_else(settings: dict, score: float):
    cut = one_answer(truncated_PG=torch.tensor([[True]]))
    algorithm = PPO(kl_coef=0, whiten_advantages=False, gae_lambda=0, **settings)
    batch = algorithm.to_batch(cut)
    assert batch.advantages_BT is not None
    assert batch.advantages_BT[0, 3].item() == pytest.approx(score - 0.9)
    assert batch.advantages_BT[0, 0].item() == pytest.approx(0.5 - 0.2), "a truncated answer has no value after it"
    _, metrics = algorithm.loss(Outputs(row(0, 0, 0, 0), values_BT=cut.values_BT), batch, count_totals(batch))
    assert float(metrics["objective/scores"]) == pytest.approx(score)


@catalogue("estimator, penalty", [("k1", 0.15), ("k2", 0.04625), ("k3", 0.0462003538)])
def test_each_estimator_of_the_kl_in_the_reward(estimator, penalty: float):
    algorithm = PPO(kl_coef=1.0, kl_estimator=estimator, whiten_advantages=False, gae_lambda=1.0)
    batch = algorithm.to_batch(one_answer())
    assert batch.returns_BT is not None
    assert batch.returns_BT[0, 0].item() == pytest.approx(1.5 - penalty, rel=1e-8)
    _, metrics = algorithm.loss(Outputs(row(0, 0, 0, 0), values_BT=row(0, 0, 0, 0)), batch, count_totals(batch))
    assert float(metrics["objective/kl"]) == pytest.approx(penalty, rel=1e-8), (
        "the KL per completion, before its weight"
    )


# Policy loss


def test_worked_policy_loss_and_gradient(t, assert_ragged):
    """Plain tensors without a critic give only the policy's part of the loss."""
    logprobs_BT = t.logprobs_BT
    loss, _ = PPO().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.146589988, rel=1e-8)
    gradient = [
        [-0.1261525316, 0, -0.1085804902],
        [0, 0.07736196427],
        [-0.0408080536, -0.03115203132, -0.04647336971, -0.04],
        [0.5503945001],
    ]
    assert_ragged(logprobs_BT.grad, gradient)


def test_worked_dual_clip(t):
    logprobs_BT = t.logprobs_BT
    loss, metrics = PPO(dual_clip=3.0).loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.0461954879, rel=1e-8)
    assert logprobs_BT.grad[3].abs().sum() == 0
    assert float(metrics["policy/dual_clip_fraction"]) == pytest.approx(0.1)


def test_a_masked_completion_leaves_loss_and_denominator(t):
    batch = t.batch(without_rows=[3])
    loss, _ = PPO().loss(t.logprobs_BT, batch, count_totals(batch))
    assert loss.item() == pytest.approx(-0.4486716801, rel=1e-8)


@catalogue("with_old", [True, False])
def test_in_the_first_update_exactly_nothing_is_clipped(t, with_old: bool):
    """The policy's loss is then minus the mean advantage, and its gradient the plain policy gradient."""
    logprobs_BT = t.logprobs_BT
    batch = replace(t.batch(), old_logprobs_BT=logprobs_BT.detach() if with_old else None)
    loss, metrics = PPO(clip_low=0.0, clip_high=0.0).loss(logprobs_BT, batch, t.totals)
    loss.backward()
    mean = float(t.advantages_BT[t.mask_BT].mean())
    assert loss.item() == pytest.approx(-mean)
    torch.testing.assert_close(logprobs_BT.grad[t.mask_BT], -t.advantages_BT[t.mask_BT] / 10)
    for name in ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "policy/out_of_band"):
        assert float(metrics[name]) == 0


# Value loss


@catalogue(
    "value_clip, loss, fraction", [(0.2, 0.4351972413, 0.5), (0.5, 0.3882622413, 0.0), (None, 0.3882622413, None)]
)
def test_worked_value_loss(value_clip: float | None, loss: float, fraction: float | None):
    experience = one_answer()
    values_BT = row(0.35, 0.9, 0.1, 1.6).requires_grad_()
    algorithm = PPO(kl_coef=0.1, value_clip=value_clip, value_coef=0.5)
    batch = algorithm.to_batch(experience)
    outputs = Outputs(row(-0.5, -1.2, -0.3, -0.9), values_BT=values_BT)
    total, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    policy = -sum(WHITE) / 4
    assert total.item() == pytest.approx(policy + 0.5 * loss, rel=1e-8)
    assert float(metrics["value/loss"]) == pytest.approx(loss, rel=1e-8)
    assert float(metrics["value/mean"]) == pytest.approx(0.5)
    assert float(metrics["return/mean"]) == pytest.approx(sum(RETURNS) / 4)
    assert (float(metrics["value/clip_fraction"]) if fraction is not None else None) == fraction
    total.backward()
    if value_clip is None:
        torch.testing.assert_close(values_BT.grad, 0.5 / 4 * (values_BT.detach() - row(*RETURNS)))


def test_a_batch_without_returns_gets_the_same_from_its_own_rows():
    """The batch is built by hand from experience and advantages. Single rows agree, too: returns belong to rows."""
    rewards_PG = torch.tensor([[1.0, -3.0], [0.5, 2.0]], dtype=torch.float64)
    torch.manual_seed(0)
    experience = Experience.from_rewards(
        rewards_PG,
        completion_mask_BT=torch.rand(4, 5) < 0.8,
        old_logprobs_BT=-torch.rand(4, 5, dtype=torch.float64),
        ref_logprobs_BT=-torch.rand(4, 5, dtype=torch.float64),
        values_BT=torch.rand(4, 5, dtype=torch.float64),
        truncated_PG=torch.tensor([[True, False], [False, True]]),
    )
    algorithm = PPO(kl_coef=0.1, missing_eos_penalty=0.5, score_clip=2.0)
    whole = algorithm.to_batch(experience)
    by_hand = Batch.from_experience(experience, algorithm.advantages(experience))
    assert by_hand.returns_BT is None
    outputs = Outputs(-torch.rand(4, 5, dtype=torch.float64), values_BT=torch.rand(4, 5, dtype=torch.float64))
    totals = count_totals(whole)
    expected, metrics = algorithm.loss(outputs, whole, totals)
    found, found_metrics = algorithm.loss(outputs, by_hand, totals)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    assert {n: float(m) for n, m in found_metrics.items()} == pytest.approx({n: float(m) for n, m in metrics.items()})
    assert outputs.values_BT is not None
    parts = [
        algorithm.loss(Outputs(outputs.logprobs_BT[[b]], values_BT=outputs.values_BT[[b]]), by_hand.rows([b]), totals)[
            0
        ]
        for b in range(4)
    ]
    assert sum(part.item() for part in parts) == pytest.approx(expected.item(), rel=1e-12)


def explained_variance(returns: list[float], values: list[float]) -> float:
    """Compute it through the loss, with the given returns and a critic that predicts `values`."""
    mask_BT = torch.ones(1, len(returns), dtype=torch.bool)
    batch = Batch(
        completion_mask_BT=mask_BT,
        advantages_BT=torch.zeros(1, len(returns), dtype=torch.float64),
        values_BT=row(*values),
        returns_BT=row(*returns),
        groups_B=torch.zeros(1, dtype=torch.long),
    )
    zeros_BT = torch.zeros(1, len(returns), dtype=torch.float64)
    _, metrics = PPO().loss(Outputs(zeros_BT, values_BT=row(*values)), batch, count_totals(batch))
    return float(metrics["value/explained_variance"])


def test_explained_variance():
    assert explained_variance([1, 2, 3, 4], [1.2, 1.8, 2.9, 4.3]) == pytest.approx(0.966)
    assert explained_variance([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert explained_variance([1, 2, 3, 4], [7, 7, 7, 7]) == pytest.approx(0)
    assert explained_variance([1, 2, 3, 4], [4, 3, 2, 1]) < 0
    assert torch.tensor(explained_variance([2, 2, 2], [1, 2, 3])).isnan(), (
        "constant returns have no variance to explain"
    )


def test_explained_variance_is_that_of_the_step_and_no_mean_over_its_parts():
    def part(*pairs: tuple[float, float]) -> ExplainedVariance:
        errors, targets = [r - v for r, v in pairs], [r for r, _ in pairs]
        return ExplainedVariance(*(Spread(len(pairs), sum(x), sum(y * y for y in x)) for x in (errors, targets)))

    merged = part((1, 1.2), (2, 1.8)).merge(part((3, 2.9), (4, 4.3)))
    assert float(merged) == pytest.approx(0.966)


# Adaptive KL


@catalogue("kl, expected", [(9.0, 0.202048), (5.7, 0.199488)])
def test_worked_adaptive_coefficient(kl: float, expected: float):
    """There are 512 completions of two tokens. The KL of each token is half of `kl`."""
    experience = Experience.from_rewards(
        torch.zeros(64, 8),
        completion_mask_BT=torch.ones(512, 2),
        old_logprobs_BT=torch.full((512, 2), -1.0, dtype=torch.float64),
        ref_logprobs_BT=torch.full((512, 2), -1.0 - kl / 2, dtype=torch.float64),
        values_BT=torch.zeros(512, 2),
    )
    algorithm = PPO(kl_coef=0.2, kl_target=6.0)
    state = algorithm.initial_state()
    assert state == KLController(kl_coef=0.2)
    after = algorithm.next_state(state, experience)
    assert after is not None
    assert after.kl_coef == pytest.approx(expected, rel=1e-8)


def test_the_present_coefficient_weighs_the_kl():
    algorithm = PPO(kl_coef=5.0, kl_target=6.0, whiten_advantages=False)
    assert_printed(algorithm.advantages(one_answer(), KLController(kl_coef=0.1)), GAE_095)


def test_a_step_without_trained_completions_leaves_the_coefficient():
    algorithm = PPO(kl_target=6.0)
    state = algorithm.initial_state()
    assert algorithm.next_state(state, one_answer(float("nan"), scored_PG=torch.tensor([[False]]))) == state
    assert PPO().initial_state() is None


# What it requests, and what it refuses


def test_no_weight_no_reference():
    assert PPO().needs == {"old", "values", "old_for_advantages", "reference"}
    assert PPO(kl_coef=0).needs == {"old", "values"}
    assert PPO(kl_coef=0, entropy_coef=0.1).needs == {"old", "values", "entropy"}


def test_a_target_without_a_weight_to_start_from_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)kl_target = 6.0 with kl_coef = 0.*kl_coef > 0.*kl_coef = 0.02"):
        PPO(kl_target=6.0, kl_coef=0.0)


def test_a_kl_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)kl_coef > 0, but old or reference log-probabilities are missing"):
        PPO().advantages(one_answer(ref_logprobs_BT=None))


def test_experience_without_values_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)no values of a critic.*values_BT"):
        PPO().advantages(one_answer(values_BT=None))


def test_a_forward_pass_without_values_is_refused():
    batch = PPO().to_batch(one_answer())
    with pytest.raises(ConfigError, match=r"(?s)values of a critic, but the forward pass returned none.*values_BT"):
        PPO().loss(row(0, 0, 0, 0), batch, count_totals(batch))


def test_returns_without_rewards_are_refused():
    batch = replace(PPO().to_batch(one_answer()), rewards_B=None, returns_BT=None)
    with pytest.raises(ConfigError, match=r"(?s)without rewards.*rewards_B, or returns_BT"):
        PPO().loss(Outputs(row(0, 0, 0, 0), values_BT=row(0, 0, 0, 0)), batch, count_totals(batch))


def test_a_penalty_for_truncation_needs_to_know_it():
    algorithm = PPO(missing_eos_penalty=1.0, kl_coef=0)
    batch = replace(algorithm.to_batch(one_answer()), truncated_B=None)
    with pytest.raises(ConfigError, match=r"(?s)does not say which completions were cut.*truncated_B"):
        algorithm.loss(Outputs(row(0, 0, 0, 0), values_BT=row(0, 0, 0, 0)), batch, count_totals(batch))


# Rewards of single tokens


def dense(**changes: object) -> Experience:
    """Return three tokens with their own rewards 0.5, -1 and 0.25, and a reward of 2 for the whole completion."""
    given: dict[str, object] = {
        "completion_mask_BT": torch.ones(1, 3),
        "values_BT": torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64),
        "token_rewards_BT": torch.tensor([[0.5, -1.0, 0.25]], dtype=torch.float64),
    }
    return Experience.from_rewards(torch.tensor([[2.0]], dtype=torch.float64), **(given | changes))  # type: ignore[arg-type]


def test_rewards_of_tokens_enter_the_returns_of_ppo():
    """Undiscounted returns are 1.75, 1.25 and 2.25. With lambda = 1 the advantage is the return minus the value."""
    plain = PPO(kl_coef=0.0, gae_lambda=1.0, whiten_advantages=False)
    batch = plain.to_batch(dense())
    assert batch.returns_BT is not None
    assert batch.advantages_BT is not None
    assert batch.returns_BT.tolist() == [pytest.approx([1.75, 1.25, 2.25])]
    assert batch.advantages_BT.tolist() == [pytest.approx([1.65, 1.05, 1.95])]


def test_the_score_of_ppo_counts_rewards_of_tokens():
    """s = clip(1.75 - 0.5, -1, 1) = 1, of which the tokens have -0.25: the last token gets 1.25 in addition."""
    experience = dense(truncated_PG=torch.tensor([[True]]))
    bounded = PPO(kl_coef=0.0, gae_lambda=1.0, whiten_advantages=False, score_clip=1.0, missing_eos_penalty=0.5)
    batch = bounded.to_batch(experience)
    assert batch.returns_BT is not None
    assert batch.returns_BT.tolist() == [pytest.approx([1.0, 0.5, 1.5])]
    outputs = Outputs(torch.zeros(1, 3), values_BT=torch.zeros(1, 3))
    assert float(bounded.loss(outputs, batch, count_totals(batch))[1]["objective/scores"]) == pytest.approx(1.0)
    composed = ComposedPolicyGradient(
        baseline="none", normalisation="none", kl="none", shaping="score", score_clip=1.0, missing_eos_penalty=0.5
    )
    assert composed.advantages(experience).tolist() == [pytest.approx([1.0, 0.5, 1.5])]


def test_rewards_of_tokens_enter_the_returns_of_reinforce_and_its_relatives():
    raw = REINFORCE(baseline="none").advantages(dense())
    assert raw.tolist() == [pytest.approx([1.75, 1.25, 2.25])]
    white = ReinforcePlusPlus().advantages(dense())
    assert white.tolist() == [pytest.approx([0, -1, 1], abs=1e-6)], "mean 1.75, deviation 0.5"
    composed = ComposedPolicyGradient(baseline="none", normalisation="none", kl="none")
    assert composed.advantages(dense()).tolist() == raw.tolist()


@catalogue("algorithm", [GRPO(), RLOO(), ReinforcePlusPlusBaseline()])
def test_an_algorithm_with_one_advantage_per_completion_refuses_rewards_of_tokens(algorithm):
    two = {name: torch.ones(2, 3) for name in ("completion_mask_BT", "values_BT", "token_rewards_BT")}
    experience = Experience.from_rewards(torch.tensor([[1.0, 0.0]]), **two)
    with pytest.raises(ConfigError, match="token rewards with ppo, reinforce_plus_plus, reinforce and remax"):
        algorithm.advantages(experience)
