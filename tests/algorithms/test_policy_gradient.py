"""The open composition: worked numbers for choices that no named algorithm makes, and refused combinations."""

from dataclasses import fields, replace

import pytest
import torch
from tests.algorithms.compositions import SETTINGS
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import (
    CISPO,
    GMPO,
    GPG,
    GRPO,
    GSPO,
    LUSPO,
    OPO,
    REINFORCE,
    RLOO,
    SAPO,
    ComposedPolicyGradient,
    DrGRPO,
    GSPOToken,
    KimiK2,
    KimiK15,
    LitePPO,
    PolicyGradient,
)  # fmt: skip
from posttrain.algorithms.composition.parameters import Parameters
from posttrain.algorithms.composition.tables import TABLES
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, count_totals


def one_token_each(rewards_PG: Tensor) -> Experience:
    return Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))


def of_length(rewards_PG: Tensor, lengths_PG: Tensor) -> Experience:
    mask_BT = torch.arange(int(lengths_PG.max())) < lengths_PG.reshape(-1, 1)
    return Experience.from_rewards(rewards_PG, completion_mask_BT=mask_BT)


def learnt(t, algorithm: PolicyGradient, batch: Batch | None = None) -> tuple[float, Tensor]:
    logprobs_BT, batch = t.logprobs_BT, t.batch() if batch is None else batch
    loss, _ = algorithm.loss(logprobs_BT, algorithm.prepare(batch), count_totals(batch))
    return loss.item(), torch.autograd.grad(loss, logprobs_BT)[0]


# Rows without a file


def test_worked_lite_ppo(rewards_PG):
    """The mean is the group's, the standard deviation the batch's, 0.4185110693. This row adds 1e-4, LitePPO 1e-6."""
    expected = [
        [1.194426131, -1.194426131, -1.194426131, 1.194426131],
        [-0.7166556787, 0.9555409049, 0, -0.2388852262],
        [0, 0, 0, 0],
    ]
    row = ComposedPolicyGradient(normalisation="batch_std", std_epsilon=1e-4)
    advantages_PG = row.advantages(one_token_each(rewards_PG)).reshape(3, 4)
    torch.testing.assert_close(advantages_PG, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12)
    centred_PG = DrGRPO().advantages(one_token_each(rewards_PG)).reshape(3, 4)
    scaled_PG = LitePPO().advantages(one_token_each(rewards_PG)).reshape(3, 4)
    torch.testing.assert_close(scaled_PG, centred_PG / (0.4185110693 + 1e-6), rtol=1e-8, atol=0)


def test_worked_opo(rewards_PG, lengths_PG):
    """The baselines are 0.4, 0.475 and 1: the mean of the rewards, weighted by the lengths."""
    experience = of_length(rewards_PG, lengths_PG)
    expected = [[0.6, -0.4, -0.4, 0.6], [-0.275, 0.425, 0.025, -0.075], [0, 0, 0, 0]]
    advantages_PG = OPO().advantages(experience)[:, 0].reshape(3, 4)
    torch.testing.assert_close(advantages_PG, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12)


def test_worked_gpg(rewards_PG):
    """Two of the twelve rewards are 0, so the centred rewards are multiplied by 12 / 10."""
    expected = [[0.6, -0.6, -0.6, 0.6], [-0.36, 0.48, 0, -0.12], [0, 0, 0, 0]]
    advantages_PG = GPG().advantages(one_token_each(rewards_PG)).reshape(3, 4)
    torch.testing.assert_close(advantages_PG, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12)


def test_worked_luspo(t):
    assert learnt(t, LUSPO(clip_low=0.2, clip_high=0.2))[0] == pytest.approx(0.3069409282, rel=1e-8)


@pytest.mark.parametrize("algorithm", [LitePPO(), LUSPO(), OPO(), GPG()], ids=lambda a: a.key)
def test_equal_rewards_have_advantages_of_exactly_zero_in_a_row(algorithm: PolicyGradient):
    experience = one_token_each(torch.full((2, 7), 0.1))
    assert (algorithm.advantages(experience) == 0).all()


@pytest.mark.parametrize("cls", [LitePPO, LUSPO, OPO, GPG])
def test_a_row_compares_within_a_group(cls):
    with pytest.raises(ConfigError, match=rf"(?s)group_size = 1, but {cls.key} compares.*at least 2"):
        cls().advantages(one_token_each(torch.tensor([[0.7]])))


# Aggregations


@pytest.mark.parametrize(
    ("aggregation", "given", "expected"),
    [
        ("token_mean", {}, 0.146589988),
        ("sequence_mean", {}, 1.128056945),
        ("sequence_sum", {}, 0.3664749701),
        ("fixed_length_mean", {"max_completion_length": 8}, 0.04580937126),
    ],
)
def test_worked_aggregations(t, aggregation: str, given: dict, expected: float):
    loss, _ = learnt(t, ComposedPolicyGradient(aggregation=aggregation, **given))
    assert loss == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("aggregation", "given", "counting", "excluding"),
    [
        ("sequence_mean", {}, -0.2479293053, -0.330572407),
        ("fixed_length_mean", {"max_completion_length": 8}, -0.12618891, -0.16825188),
        ("token_mean", {}, None, -0.4486716801),
    ],
)
def test_a_masked_completion_counts_only_on_request(t, aggregation, given, counting, excluding):
    batch = t.batch(without_rows=[3])
    row = ComposedPolicyGradient(aggregation=aggregation, **given)
    assert learnt(t, row, batch)[0] == pytest.approx(excluding, rel=1e-8)
    if counting is not None:
        loss, _ = learnt(t, replace(row, count_masked_sequences=True), batch)
        assert loss == pytest.approx(counting, rel=1e-8)


def test_the_mean_per_prompt_weighs_prompts_alike_and_their_tokens_alike(t):
    """Rows 0 and 1 answer one prompt with 5 tokens, rows 2 and 3 another. It then equals the mean over tokens."""
    even = replace(t.batch(), groups_B=torch.tensor([0, 0, 1, 1]))
    assert learnt(t, ComposedPolicyGradient(aggregation="prompt_mean"), even)[0] == pytest.approx(0.146589988, rel=1e-8)
    uneven = replace(t.batch(), groups_B=torch.tensor([7, 3, 7, 7]))
    per_row = torch.tensor([-3.787330218, 1.3336196427, -1.5843345463, 5.503945001], dtype=torch.float64)
    expected = (per_row[[0, 2, 3]].sum() / 8 + per_row[1] / 2) / 2
    loss, _ = learnt(t, ComposedPolicyGradient(aggregation="prompt_mean"), uneven)
    assert loss == pytest.approx(expected.item(), rel=1e-8)


# Equalities of the family with one update per batch


def at_start(t) -> Batch:
    """Return a batch for which the policy has not moved: every ratio is 1."""
    return replace(t.batch(), old_logprobs_BT=None)


@catalogue(
    "one, other",
    [
        (GRPO(), GSPO()),
        (GRPO(), GSPOToken()),
        (GRPO(), GRPO(dual_clip=3.0)),
        (GRPO(), ComposedPolicyGradient(trust_region="none")),
        (GSPO(), GMPO()),
        (SAPO(), ComposedPolicyGradient(ratio="none", trust_region="none")),
        (CISPO(), ComposedPolicyGradient(ratio="none", trust_region="none", aggregation="token_mean")),
        (RLOO(), RLOO(clip_low=0.2, clip_high=0.2)),
        (REINFORCE(), REINFORCE(clip_low=0.2, clip_high=0.2)),
    ],
)
def test_on_policy_these_have_the_same_gradient(t, one: PolicyGradient, other: PolicyGradient):
    torch.testing.assert_close(learnt(t, one, at_start(t))[1], learnt(t, other, at_start(t))[1], rtol=1e-10, atol=1e-14)


def test_gspo_token_is_gspo_where_a_completion_has_one_advantage(t):
    for one, other in (
        (GSPO(), GSPOToken()),
        (GSPO(clip_low=0.2, clip_high=0.2), GSPOToken(clip_low=0.2, clip_high=0.2)),
    ):
        assert learnt(t, one)[0] == pytest.approx(learnt(t, other)[0], rel=1e-12)
        torch.testing.assert_close(learnt(t, one)[1], learnt(t, other)[1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("bound", [1.3, 1.5, 3.0, 4.0])
def test_trls_two_sided_clip_is_the_dual_clip(t, bound: float):
    """TRL caps the ratio at delta in the branch that is not clipped. delta is above 1 + clip_high."""
    logprobs_BT, mask_BT, advantages_BT = t.logprobs_BT, t.mask_BT, t.advantages_BT
    ratio_BT = torch.where(mask_BT, logprobs_BT - t.old_BT, 0.0).exp()
    two_sided_BT = -torch.minimum(ratio_BT.clamp(max=bound) * advantages_BT, ratio_BT.clamp(0.8, 1.2) * advantages_BT)
    expected = torch.where(mask_BT, two_sided_BT, 0.0).sum() / 10
    loss, gradient_BT = learnt(t, ComposedPolicyGradient(aggregation="token_mean", dual_clip=bound))
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient_BT, torch.autograd.grad(expected, logprobs_BT)[0], rtol=1e-10, atol=1e-14)


def test_reinforce_plus_plus_baseline_without_whitening_is_dr_grpo(rewards_PG):
    row = ComposedPolicyGradient(normalisation="none", kl_estimator="k2", aggregation="token_mean")
    experience = one_token_each(rewards_PG)
    assert torch.equal(row.advantages(experience), DrGRPO().advantages(experience))


def test_the_gradient_of_kimi_k2_is_2_tau_times_that_of_k15(t):
    """It is -2 tau times the ascent direction, and so 2 tau times the gradient of the loss."""
    k15, k2 = (learnt(t, cls(tau=0.7))[1] for cls in (KimiK15, KimiK2))
    torch.testing.assert_close(k2, 2 * 0.7 * k15, rtol=1e-10, atol=1e-14)


# Refusals


@catalogue(
    "given, message",
    [
        ({"ratio": "none"}, r"(?s)ratio = none, trust_region = clip.*Set ratio = token"),
        ({"trust_region": "regression"}, r"(?s)ratio = token, trust_region = regression.*Set ratio = none"),
        ({"trust_region": "log_clip"}, r"Set ratio = sequence"),
        ({"trust_region": "weight_clip", "ratio": "sequence_token"}, r"a ratio that the trust region supports"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, r"(?s)kl = loss, kl_estimator = k1.*expected gradient of k1 is zero"),
        ({"kl": "reward", "kl_estimator": "k3_corrected"}, r"(?s)kl = reward, kl_estimator = k3_corrected.*k1"),
        ({"kl": "reward_sequence", "kl_estimator": "k3"}, r"Set kl_estimator = k1"),
        ({"kl": "reward", "ratio": "sequence"}, r"(?s)one advantage per completion.*ratio = sequence_token"),
        ({"baseline": "critic", "normalisation": "none", "ratio": "sequence"}, r"one advantage per completion"),
        ({"normalisation": "per_reward", "baseline": "leave_one_out"}, r"baseline = group_mean, shaping = none"),
        ({"baseline": "pass_at_k"}, r"(?s)none or whiten_tokens.*Set normalisation = none"),
        ({"baseline": "teacher", "normalisation": "none", "kl": "reward"}, r"a teacher gives no rewards"),
        ({"baseline": "critic", "normalisation": "none", "kl": "reward_sequence"}, r"kl = none, loss or reward"),
        ({"trust_region": "weight_clip", "max_ratio": 3.0, "clip_high": 0.2}, r"one absolute bound"),
        ({"trust_region": "weight_clip", "max_ratio": 0.2}, r"max_ratio = 0.2; allowed: greater than 1"),
        ({"clip_lwo": 0.2}, r"Did you mean 'clip_low'"),
        ({"baseline": "group"}, r"policy_gradient.baseline = 'group'; allowed: 'none', 'batch_mean'"),
        (
            {"trust_region": "soft_gate", "correction": {"anchor": "sampler", "high": 2}},
            r"count trainer / sampler twice",
        ),
        ({"ratio": "none", "trust_region": "none", "correction": "bypass"}, r"without a ratio"),
    ],
)
def test_a_composition_without_gradient_or_with_a_wrong_one_is_refused(given: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ComposedPolicyGradient(**given)


READ_BY_ALL = ("max_completion_length", "top_entropy_quantile")
PARAMETERS = [name for name in Parameters.__annotations__ if name not in READ_BY_ALL]


@catalogue("name", PARAMETERS)
def test_a_parameter_that_nothing_reads_is_refused(name: str):
    """The test takes the first of these compositions that does not read the parameter."""
    beside, value = SETTINGS[name]
    some = [{"aggregation": "token_mean"}, *(beside for beside, _ in SETTINGS.values())]
    unread = next(b for b in some if name not in b and name not in ComposedPolicyGradient(**b).values)
    with pytest.raises(ConfigError, match=rf"(?s)policy_gradient.{name} = .*which none of the chosen options reads"):
        ComposedPolicyGradient(**unread, **{name: value})
    ComposedPolicyGradient(**beside | {name: value})


def test_each_parameter_is_read_by_some_choice_and_says_where_its_default_comes_from():
    read = {name for table in TABLES.values() for option in table.values() for name in option.reads}
    assert read == set(Parameters.__annotations__)
    assert set(ComposedPolicyGradient.card.sources) == read | set(TABLES)
    assert set(SETTINGS) == {f.name for f in fields(ComposedPolicyGradient)}


@catalogue(
    "given, needs",
    [
        ({}, {"old"}),
        ({"ratio": "none", "trust_region": "none"}, set()),
        ({"kl_coef": 0.1}, {"old", "reference"}),
        ({"kl": "reward", "kl_coef": 0.1}, {"old", "reference", "old_for_advantages"}),
        ({"baseline": "greedy", "normalisation": "none"}, {"old", "greedy_reward"}),
        ({"baseline": "critic", "normalisation": "none"}, {"old", "values"}),
        ({"normalisation": "per_reward"}, {"old", "reward_components"}),
        ({"filter": "signal"}, {"old", "signal"}),
        ({"trust_region": "kl_cov"}, {"old", "current"}),
        ({"correction": "m2po"}, {"old", "old_for_advantages"}),
    ],
)
def test_needs_follow_from_the_choices(given: dict, needs: set[str]):
    assert ComposedPolicyGradient(**given).needs == needs
