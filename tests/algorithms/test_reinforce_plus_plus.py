"""REINFORCE++ and REINFORCE++-baseline: worked whitening over tokens and sequences, with and without KL."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import DrGRPO, ReinforcePlusPlus, ReinforcePlusPlusBaseline
from posttrain.errors import ConfigError
from posttrain.functional.baselines import whiten
from posttrain.types import Batch, Experience, count_totals

NAN = float("nan")
PLUS_PLUS = [
    ("tokens", [0.9456016708, -1.514500237, -1.022479855, 0.69959148, -0.2844492831, -0.5304594739]),
    ("sequences", [0.7964743344, -1.592948669, -1.115064068, 0.5575320341, -0.3982371672, -0.6371794675]),
]
BASELINE = [
    [1.738681339, -1.477376629, -1.477376629, 1.738681339],
    [-0.8341650355, 1.417075542, 0.130652355, -0.1909534419],
    [0.130652355] * 4,
]


@pytest.fixture
def rollout(rewards_PG, lengths_PG) -> Experience:
    """Fixture R with the lengths L."""
    return Experience.from_rewards(rewards_PG, completion_mask_BT=torch.arange(5)[None] < lengths_PG.reshape(-1, 1))


def assert_per_completion(advantages_BT: torch.Tensor, rollout: Experience, expected: list) -> None:
    """Check that all tokens of a completion share its number, and that everything else is 0."""
    expected_PG = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(advantages_BT, rollout.broadcast(expected_PG), rtol=1e-8, atol=1e-12)


@catalogue("over, expected", PLUS_PLUS)
def test_worked_advantages(rollout, over, expected: list[float]):
    right, wrong, *second = expected
    advantages_BT = ReinforcePlusPlus(whiten_over=over).advantages(rollout)
    assert_per_completion(advantages_BT, rollout, [[right, wrong, wrong, right], second, [right] * 4])


def test_worked_advantages_with_kl(t, assert_ragged):
    """R = [1, 0, 0.5, 0.25] with a KL weight of 0.1. The KL of a token enters its own return and all earlier ones."""
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
    )
    expected = [
        [1.25643284, 1.28269058, 1.2301751],
        [-1.38246999, -1.40872773],
        [-0.1220984892, -0.09584074955, -0.1220984892, -0.06958300995],
        [-0.5684800624],
    ]
    assert_ragged(ReinforcePlusPlus(kl_coef=0.1).advantages(experience), expected)


def test_worked_openrlhf_form_of_the_same_returns(t, assert_ragged):
    returns_BT = torch.tensor(
        [[1.005, 1.015, 0.995, 0], [0, -0.01, 0, 0], [0.48, 0.49, 0.48, 0.5], [0.31, 0, 0, 0]], dtype=torch.float64
    )
    expected = [
        [1.324396546, 1.352074635, 1.296718457],
        [-1.457251372, -1.484929461],
        [-0.1287031126, -0.1010250239, -0.1287031126, -0.07334693515],
        [-0.5992306212],
    ]
    assert_ragged(whiten(returns_BT, t.mask_BT, population=True), expected)


def test_an_unscored_completion_is_in_no_statistic(rewards_PG):
    with_it = Experience.from_rewards(torch.tensor([[1.0, NAN, 0.0]]), completion_mask_BT=torch.ones(3, 2))
    without = Experience.from_rewards(torch.tensor([[1.0, 0.0]]), completion_mask_BT=torch.ones(2, 2))
    for algorithm in (ReinforcePlusPlus(), ReinforcePlusPlusBaseline()):
        assert torch.equal(algorithm.advantages(with_it)[[0, 2]], algorithm.advantages(without))
        assert (algorithm.advantages(with_it)[1] == 0).all()


@catalogue("over", ["tokens", "sequences"])
def test_one_answer_of_one_token_teaches_nothing(over):
    """A single token has nothing to be compared with. The result is neither nan nor a division by almost nothing."""
    experience = Experience.from_rewards(torch.tensor([[0.7]]), completion_mask_BT=torch.ones(1, 1))
    assert ReinforcePlusPlus(whiten_over=over).advantages(experience).tolist() == [[0]]


# Baseline


def test_worked_advantages_of_the_baseline_variant(rollout):
    """A group with equal rewards gets 0.13, because the mean of the centred rewards over *tokens* is not 0."""
    assert_per_completion(ReinforcePlusPlusBaseline().advantages(rollout), rollout, BASELINE)


def test_worked_openrlhf_form_of_the_baseline_variant(rollout, rewards_PG):
    centered_BT = rollout.broadcast(rewards_PG - rewards_PG.mean(dim=-1, keepdim=True))
    expected = [
        [1.766502098, -1.501016234, -1.501016234, 1.766502098],
        [-0.8475125674, 1.439750265, 0.1327429322, -0.194008901],
        [0.1327429322] * 4,
    ]
    assert_per_completion(whiten(centered_BT, rollout.scored_mask_BT, population=True), rollout, expected)


@catalogue("over", ["tokens", "sequences"])
def test_without_centring_a_group_of_equal_rewards_is_exactly_zero(rollout, over):
    advantages_BT = ReinforcePlusPlusBaseline(center=False, whiten_over=over).advantages(rollout)
    assert (advantages_BT[8:] == 0).all()
    assert (advantages_BT[:8].sum(dim=-1)[[0, 1, 2, 3, 4, 5, 7]] != 0).all()


@catalogue("over", ["tokens", "sequences"])
def test_without_whitening_it_has_the_advantage_of_dr_grpo(rollout, over):
    """For both reductions it is a multiple of that advantage, with a single factor for the whole batch."""
    plain_BT = DrGRPO(max_completion_length=5).advantages(rollout)
    whitened_BT = ReinforcePlusPlusBaseline(center=False, whiten_over=over).advantages(rollout)
    scale = whitened_BT[0, 0] / plain_BT[0, 0]
    torch.testing.assert_close(whitened_BT, scale * plain_BT, rtol=1e-12, atol=0)


def test_over_sequences_the_centred_rewards_have_mean_zero_already(rollout):
    """A second centring therefore changes nothing over sequences, but it does over tokens."""

    def advantages(over, *, center: bool) -> torch.Tensor:
        return ReinforcePlusPlusBaseline(whiten_over=over, center=center).advantages(rollout)

    torch.testing.assert_close(advantages("sequences", center=True), advantages("sequences", center=False))
    assert (advantages("tokens", center=True) - advantages("tokens", center=False)).abs().max() > 0.1


def test_a_group_of_one_is_refused():
    experience = Experience.from_rewards(torch.tensor([[0.7]]), completion_mask_BT=torch.ones(1, 1))
    with pytest.raises(ConfigError, match="reinforce_plus_plus_baseline compares completions"):
        ReinforcePlusPlusBaseline().advantages(experience)


# Loss


def test_worked_loss(t):
    """Token ratios are clipped at 0.2, and the loss is the mean over all ten tokens."""
    for algorithm in (ReinforcePlusPlus(), ReinforcePlusPlusBaseline()):
        loss, metrics = algorithm.loss(t.logprobs_BT, t.batch(), t.totals)
        assert loss.item() == pytest.approx(0.146589988, rel=1e-8)
        assert float(metrics["clip_ratio/region_mean"]) == pytest.approx(0.2)


def test_the_kl_of_the_baseline_variant_is_k2_in_the_loss(t, assert_ragged):
    gradients = []
    for kl_coef in (0.0, 0.1):
        logprobs_BT = t.logprobs_BT
        loss, _ = ReinforcePlusPlusBaseline(kl_coef=kl_coef).loss(logprobs_BT, t.batch(), t.totals)
        loss.backward()
        gradients.append(logprobs_BT.grad)
    assert loss.item() == pytest.approx(0.146589988 + 0.1 * 0.05372, rel=1e-8)
    delta = [[0.15, 0.1, -0.05], [-0.5, 0.2], [0.12, -0.35, 0.35, 0], [0.7]]
    assert_ragged((gradients[1] - gradients[0]) * 10 / 0.1, delta)


def test_on_policy_it_is_reinforce_over_tokens(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    logprobs_BT = t.logprobs_BT
    ReinforcePlusPlus().loss(logprobs_BT, batch, count_totals(batch))[0].backward()
    torch.testing.assert_close(logprobs_BT.grad[t.mask_BT], -t.advantages_BT[t.mask_BT] / 10, rtol=1e-12, atol=0)


def test_a_kl_without_log_probabilities_is_refused(rollout, t):
    with pytest.raises(ConfigError, match="old or reference log-probabilities are missing"):
        ReinforcePlusPlus(kl_coef=0.1).advantages(rollout)
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    with pytest.raises(ConfigError, match="no reference log-probabilities"):
        ReinforcePlusPlusBaseline(kl_coef=0.1).loss(t.logprobs_BT, batch, t.totals)
