"""The expectation of each estimator, over EVERY tuple of completions of a tiny policy, compared with the true gradient.

The policy writes letters 0 and 1 until it writes EOS or has no room left: 3 completions of 1 token, 7 of up to 2, 15 of
up to 3. Nothing is sampled: each tuple of completions has its exact probability as its weight, in float64. Tuples that
differ only in the order within a group have the same loss (test_invariances.py), so one represents them all.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.catalogue import THOROUGH, catalogue
from torch import Tensor

from posttrain.algorithms import (
    ALGORITHMS,
    CISPO,
    DAPO,
    DPPO,
    DRO,
    GDPO,
    GMPO,
    GPG,
    GRPO,
    GSPO,
    LUSPO,
    OPO,
    PPO,
    REINFORCE,
    RLOO,
    SAPO,
    TOPR,
    VESPO,
    ClipCov,
    ComposedPolicyGradient,
    DeepSeekV32,
    Distillation,
    DrGRPO,
    GRPOPassK,
    GSPOToken,
    KimiK2,
    KimiK15,
    KLCov,
    LitePPO,
    MaxRL,
    PassAtK,
    PolicyGradient,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
)
from posttrain.algorithms.declared import biased
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.reinforce import MovingAverage
from posttrain.types import Experience, Outputs, count_totals

EOS = 2
KL = 0.3


@dataclass(frozen=True)
class World:
    """One prompt, a policy (logits = weights @ features), a reference policy, and a reward for every completion."""

    completions: tuple[tuple[int, ...], ...]
    prompt: float
    weights: Tensor
    ref_weights: Tensor
    rewards_C: Tensor

    @property
    def others_C(self) -> Tensor:
        """The rewards of every completion from a second reward function."""
        return (1 + waves(len(self.completions), pitch=4.7)) / 2

    @property
    def mask_CT(self) -> Tensor:
        longest = max(map(len, self.completions))
        return torch.tensor([[t < len(c) for t in range(longest)] for c in self.completions])

    def next_token_V(self, weights: Tensor, prefix: tuple[int, ...]) -> Tensor:
        """Log-probabilities of the next token after the prefix."""
        last = prefix[-1] if prefix else -1
        seen = torch.tensor([1.0, self.prompt, last == 0, last == 1, len(prefix)], dtype=torch.float64)
        return (weights @ seen).log_softmax(dim=-1)

    def logprobs_CT(self, weights: Tensor) -> Tensor:
        """Return the log-probability of every token of every completion, with 0 on padding."""
        rows = [
            torch.stack([self.next_token_V(weights, c[:t])[token] for t, token in enumerate(c)])
            for c in self.completions
        ]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def completions_up_to(length: int) -> tuple[tuple[int, ...], ...]:
    """Return every sequence of letters that ends at its first EOS, or at `length` without one."""
    if length == 0:
        return ((),)
    return ((EOS,), *((letter, *rest) for letter in (0, 1) for rest in completions_up_to(length - 1)))


def waves(*shape: int, pitch: float) -> Tensor:
    """Return numbers in [-1, 1] without a pattern, the same on every machine."""
    return (pitch * torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)).sin().reshape(shape)


def make_world(length: int, *, prompt: float = 1.0, pitch: float = 2.3) -> World:
    completions = completions_up_to(length)
    return World(
        completions=completions,
        prompt=prompt,
        weights=(waves(3, 5, pitch=1.7) / 2).requires_grad_(),
        ref_weights=waves(3, 5, pitch=0.9) / 2,  # so close that k3 stays below its cap of 10
        rewards_C=(1 + waves(len(completions), pitch=pitch)) / 2,
    )


LONG, SHORT = make_world(3), make_world(2)
PAIR = (SHORT, replace(make_world(2, prompt=-1.0, pitch=3.1), weights=SHORT.weights))
"""Two prompts with different rewards but the same policy."""


def gradient(objective: Tensor, world: World) -> Tensor:
    return torch.autograd.grad(objective, world.weights)[0]


def exact(worlds: Sequence[World], kl_coef: float = 0.0) -> Tensor:
    """Return the gradient of the mean over prompts of E[R - kl_coef * sum_t log(policy / reference)]."""
    objective = torch.zeros((), dtype=torch.float64)
    for world in worlds:
        logprob_C = world.logprobs_CT(world.weights).sum(dim=-1)
        k1_C = logprob_C - world.logprobs_CT(world.ref_weights).sum(dim=-1)
        objective = objective + (logprob_C.exp() * (world.rewards_C - kl_coef * k1_C)).sum()
    return gradient(objective / len(worlds), worlds[0])


def ascent(
    algorithm: PolicyGradient,
    worlds: Sequence[World],
    group_size: int,
    state: MovingAverage | None = None,
    *,
    off_policy: bool = False,
) -> Tensor:
    """Return minus the expected gradient of the loss of one step on `group_size` completions of each prompt.

    With `off_policy`, the reference policy samples the completions instead of the policy itself.
    """
    logprobs_CT = torch.cat([world.logprobs_CT(world.weights) for world in worlds])
    expected = torch.zeros((), dtype=torch.float64)
    for rows, probability, experience in steps_of(tuple(worlds), group_size, off_policy):
        logprobs_BT = logprobs_CT[rows]
        batch = replace(algorithm.to_batch(experience, state), current_logprobs_BT=logprobs_BT.detach())
        batch = algorithm.prepare(batch)
        outputs = Outputs(logprobs_BT, values_BT=experience.values_BT)
        loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
        expected = expected + probability * loss
    return -gradient(expected, worlds[0])


@cache
def steps_of(worlds: tuple[World, ...], group_size: int, off_policy: bool) -> list[tuple[Tensor, Tensor, Experience]]:
    """Return every step: the rows of its completions among those of all worlds, its probability and its experience."""
    logprobs_CT = torch.cat([world.logprobs_CT(world.weights.detach()) for world in worlds])
    ref_CT = torch.cat([world.logprobs_CT(world.ref_weights) for world in worlds])
    sampling_CT, values_CT = ref_CT if off_policy else logprobs_CT, torch.cat(values_of(worlds))
    mask_CT = torch.cat([world.mask_CT for world in worlds])
    rewards_C, others_C = torch.cat([w.rewards_C for w in worlds]), torch.cat([w.others_C for w in worlds])
    starts = list(itertools.accumulate((len(world.completions) for world in worlds), initial=0))
    found = []
    for groups in itertools.product(*(groups_of(len(world.completions), group_size) for world in worlds)):
        rows = torch.tensor([start + c for start, (chosen, _) in zip(starts, groups, strict=False) for c in chosen])
        rewards_PG, others_PG = (x_C[rows].reshape(len(worlds), group_size) for x_C in (rewards_C, others_C))
        experience = Experience.from_rewards(
            rewards_PG,
            rewards_KPG=torch.stack([rewards_PG, others_PG]),
            greedy_rewards_P=torch.full((len(worlds),), 0.37, dtype=torch.float64),
            completion_mask_BT=mask_CT[rows],
            old_logprobs_BT=logprobs_CT[rows],
            sampling_logprobs_BT=sampling_CT[rows],
            ref_logprobs_BT=ref_CT[rows],
            teacher_logprobs_BT=ref_CT[rows],
            values_BT=values_CT[rows],
        )
        orders = math.prod(orders for _, orders in groups)
        found.append((rows, orders * sampling_CT[rows].sum().exp(), experience))
    return found


def groups_of(number: int, size: int) -> list[tuple[tuple[int, ...], int]]:
    """Return every group of `size` out of `number` completions, ignoring order, and the number of its orders."""
    groups = itertools.combinations_with_replacement(range(number), size)
    return [(g, math.factorial(size) // math.prod(map(math.factorial, Counter(g).values()))) for g in groups]


def values_of(worlds: Sequence[World]) -> list[Tensor]:
    """Return `[C, T]` for each world: values of an untrained critic, equal for equal prefixes."""
    known: dict[tuple[int, ...], float] = {}
    for prefix in sorted({c[:t] for world in worlds for c in world.completions for t in range(len(c))}):
        known[prefix] = waves(len(known) + 1, pitch=1.9)[-1].item()
    return [
        torch.nn.utils.rnn.pad_sequence(
            [torch.tensor([known[c[:t]] for t in range(len(c))], dtype=torch.float64) for c in world.completions],
            batch_first=True,
        )
        for world in worlds
    ]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert expected.norm() > 1e-3, "both gradients are nearly zero, so comparing them shows nothing"
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=0)


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


def test_the_policy_is_enumerated_completely():
    for world, number in ((SHORT, 7), (LONG, 15)):
        probabilities_C = world.logprobs_CT(world.weights).sum(dim=-1).exp()
        assert len(world.completions) == number
        assert probabilities_C.sum().item() == pytest.approx(1, abs=1e-12)


# REINFORCE and RLOO: exact


@catalogue("group_size, clip", [(1, None), (1, 0.2), (2, 0.2), (2, None)][: 4 if THOROUGH else 3])
def test_reinforce_without_a_baseline_is_the_exact_gradient(group_size: int, clip: float | None):
    algorithm = REINFORCE(baseline="none", clip_low=clip, clip_high=clip)
    assert_same(ascent(algorithm, [LONG], group_size), exact([LONG]))


@catalogue("mean", [-3.0, 0.0, 0.4, 10.0])
def test_a_moving_average_of_earlier_batches_changes_nothing_in_expectation(mean: float):
    algorithm = REINFORCE(baseline="moving_average")
    assert_same(ascent(algorithm, [LONG], 1, MovingAverage(mean=mean, batches=5)), exact([LONG]))


@pytest.mark.parametrize(
    ("world", "group_size", "clip"),
    [
        pytest.param(LONG, 2, 0.2, id="pairs"),
        pytest.param(LONG, 2, None, id="pairs, not clipped", marks=pytest.mark.slow),
        pytest.param(SHORT, 3, 0.2, id="triples", marks=pytest.mark.slow),
        pytest.param(SHORT, 3, None, id="triples, not clipped"),
    ],
)
def test_rloo_is_the_exact_gradient(world: World, group_size: int, clip: float | None):
    assert_same(ascent(RLOO(clip_low=clip, clip_high=clip), [world], group_size), exact([world]))


def test_two_prompts_give_the_mean_of_their_gradients():
    assert_same(ascent(REINFORCE(baseline="none"), PAIR, 1), exact(PAIR))


@catalogue(
    "algorithm, group_size",
    [(REINFORCE(baseline="none", kl_coef=KL), 1), (RLOO(kl_coef=KL), 2)],
    ids=["reinforce", "rloo"],
)
def test_kl_in_the_reward_is_the_gradient_of_the_kl_of_whole_completions(algorithm: PolicyGradient, group_size: int):
    """The objective is E[R - KL * sum_t log(policy / reference)]. It includes the effect of a token on later tokens."""
    assert_same(ascent(algorithm, [LONG], group_size), exact([LONG], KL))


# A known factor


@catalogue("worlds, group_size", [([LONG], 2), ([SHORT], 3), (PAIR, 1)], ids=["2", "3", "2 prompts"])
def test_the_batch_mean_scales_the_gradient_by_n_minus_1_over_n(worlds: Sequence[World], group_size: int):
    num = len(worlds) * group_size
    assert_same(ascent(REINFORCE(baseline="batch_mean"), worlds, group_size), (num - 1) / num * exact(worlds))


def test_the_batch_mean_does_not_scale_the_kl():
    """The baseline is the mean of the rewards alone, so only their part of the gradient shrinks."""
    kl_part = exact([LONG], KL) - exact([LONG])
    assert_same(ascent(REINFORCE(baseline="batch_mean", kl_coef=KL), [LONG], 2), exact([LONG]) / 2 + kl_part)


@catalogue("world, group_size", [(LONG, 2), (SHORT, 3)], ids=["pairs", "triples"])
def test_dr_grpo_is_the_exact_gradient_times_g_minus_1_over_g_times_length(world: World, group_size: int):
    factor = (group_size - 1) / (group_size * 8)
    assert_same(ascent(DrGRPO(max_completion_length=8), [world], group_size), factor * exact([world]))


# A known bias


@catalogue(
    "world, group_size, expected",
    [(LONG, 2, 0.8969471215), (SHORT, 3, 0.5875237637)],
    ids=["pairs", "triples"],
)
def test_grpo_does_not_point_along_the_gradient(world: World, group_size: int, expected: float):
    """GRPO's card quotes these figures: update both."""
    bent = cosine(ascent(GRPO(), [world], group_size), exact([world]))
    assert bent < 0.9
    assert bent == pytest.approx(expected, rel=1e-8)


def right_or_wrong(world: World, *right: tuple[int, ...]) -> World:
    return replace(world, rewards_C=torch.tensor([float(c in right) for c in world.completions], dtype=torch.float64))


def test_the_mean_per_completion_alone_bends_grpo():
    """In pairs of right and wrong the standard deviation is a constant. Only the division by the length remains."""
    world = right_or_wrong(LONG, (0, 0, EOS), (1, EOS))
    assert cosine(ascent(DrGRPO(max_completion_length=8), [world], 2), exact([world])) == pytest.approx(1, abs=1e-12)
    assert cosine(ascent(GRPO(), [world], 2), exact([world])) == pytest.approx(0.8639061406, rel=1e-8)


@catalogue("logit", [-3.0, 0.0, 2.0])
def test_the_standard_deviation_alone_weighs_grpo_by_difficulty(logit: float):
    """Answers have one token and are right with probability p, G = 4. The gradient of p gets the weight w(p) instead of
    1.

    w(p) = E[m (1 - m / G) / std(m)] / (G p (1 - p)), where m ~ Binomial(G, p) of the group are right.
    """
    weights = torch.zeros(3, 5, dtype=torch.float64)
    weights[EOS, 0] = logit
    world = replace(right_or_wrong(make_world(1), (EOS,)), weights=weights.requires_grad_())
    p = world.logprobs_CT(weights)[0].exp().item()
    weight = sum(
        math.comb(4, m) * p**m * (1 - p) ** (4 - m) * m * (1 - m / 4) / (math.sqrt(m * (1 - m / 4) / 3) + 1e-6)
        for m in (1, 2, 3)
    ) / (4 * p * (1 - p))
    assert_same(ascent(GRPO(), [world], 4), weight * exact([world]))


@pytest.mark.slow
@catalogue(
    "algorithm, pairs, triples",
    [
        *((a, 0.8969471215, 0.5875237637) for a in (GSPO(), GSPOToken(), GMPO(), SAPO())),
        *(
            (algorithm, 0.8931512097, 0.7324465029)
            for algorithm in (DAPO(), CISPO(), VESPO(), DPPO(), KLCov(), LitePPO())
        ),
        (ClipCov(), 0.8923362277, 0.7317776738),
        (LUSPO(), 0.8944166116, 0.8210216185),
        (DeepSeekV32(), 0.9677816612, 0.8702470893),
        (OPO(), 0.9792976632, 0.9510714725),
        (GPG(), 0.9969800074, 0.9930571841),
        (ReinforcePlusPlus(), 0.9082446567, 0.6953215727),
        (ReinforcePlusPlusBaseline(), 0.9082446567, 0.6953215727),
        (PPO(kl_coef=0.0), 0.7579780012, 0.5610136048),
        (MaxRL(), 0.9420307204, 0.9965521439),
        (DRO(), 0.9969800074, 0.9930571841),
        (GRPOPassK(), 0.8677678634, 0.5782850284),
    ],
    ids=lambda value: value.key if isinstance(value, PolicyGradient) else "",
)
def test_the_bias_of_the_others_is_what_their_page_says(algorithm: PolicyGradient, pairs: float, triples: float):
    """On-policy all ratios are 1, so a trust region has no effect. Algorithms with the same aggregation agree."""
    bent = [cosine(ascent(algorithm, [world], size), exact([world])) for world, size in ((LONG, 2), (SHORT, 3))]
    assert bent == pytest.approx([pairs, triples], rel=1e-8)
    assert biased(round(pairs, 3), round(triples, 3)) in algorithm.card.differs


def test_gdpo_climbs_nearly_the_sum_of_its_rewards():
    both = [replace(world, rewards_C=world.rewards_C + world.others_C) for world in (LONG, SHORT)]
    bent = [
        cosine(ascent(GDPO(), [world], size), exact([world_of_both]))
        for world, world_of_both, size in zip((LONG, SHORT), both, (2, 3), strict=True)
    ]
    assert bent == pytest.approx([0.9846853636, 0.9919220402], rel=1e-8)
    assert biased(0.985, 0.992, "the weighted sum of the rewards") in GDPO().card.differs


def test_pass_at_k_climbs_nearly_the_probability_that_one_of_k_is_right():
    """The gradient of 1 - (1 - p)^2 is parallel to that of p, the probability of a right answer."""
    world = right_or_wrong(SHORT, (0, EOS), (1, EOS))
    assert cosine(ascent(PassAtK(k=2), [world], 3), exact([world])) == pytest.approx(0.9951142559, rel=1e-8)
    assert any("cosine of 0.995" in line for line in PassAtK().card.differs)


# Unbiased, or up to a factor: substitutes for the group


ALONE: dict[str, Any] = {
    "normalisation": "none",
    "ratio": "none",
    "trust_region": "none",
    "aggregation": "sequence_sum",
}


@catalogue("clip", [None, 0.2])
def test_remax_is_the_exact_gradient_whatever_the_greedy_answer_earned(clip: float | None):
    assert_same(ascent(ReMax(clip_low=clip, clip_high=clip), [LONG], 1), exact([LONG]))
    assert_same(ascent(ReMax(kl_coef=KL), [LONG], 1), exact([LONG], KL))


@catalogue("baseline", [-1.0, 0.0, 0.3])
def test_topr_on_policy_is_the_exact_gradient_whatever_its_constant(baseline: float):
    assert_same(ascent(TOPR(baseline=baseline), [LONG], 1), exact([LONG]))


@catalogue("kl", [0.0, KL])
def test_a_critic_that_is_wrong_changes_nothing_with_gae_lambda_1(kl: float):
    """Any value of a prefix is a valid baseline. The sum over tokens is exact, while PPO's mean is biased."""
    algorithm = ComposedPolicyGradient(baseline="critic", gae_lambda=1.0, kl="reward", kl_coef=kl, **ALONE)
    assert_same(ascent(algorithm, [LONG], 1), exact([LONG], kl))


@pytest.mark.parametrize(
    ("world", "group_size"),
    [pytest.param(LONG, 2, id="pairs", marks=pytest.mark.slow), pytest.param(SHORT, 3, id="triples")],
)
def test_kimi_scales_the_gradient_by_g_minus_1_over_g(world: World, group_size: int):
    """The factor is that of k1.5. For K2 it is multiplied by 2 tau, because its loss is a square."""
    factor = (group_size - 1) / group_size
    assert_same(ascent(KimiK15(), [world], group_size), factor * exact([world]))
    assert_same(ascent(KimiK2(tau=0.7), [world], group_size), 2 * 0.7 * factor * exact([world]))


def test_the_group_mean_with_a_sum_over_tokens_scales_by_g_minus_1_over_g():
    assert_same(ascent(ComposedPolicyGradient(**ALONE), [SHORT], 3), 2 / 3 * exact([SHORT]))


# Off-policy: the reference has sampled the completions


FULL: dict[str, Any] = {"level": "sequence", "action": "full"}


@catalogue(
    "algorithm, group_size",
    [
        (REINFORCE(baseline="none", correction=Correction(**FULL)), 1),
        (REINFORCE(baseline="none", correction=Correction(anchor="sampler", **FULL)), 1),
        (RLOO(correction=Correction(**FULL)), 2),
        (
            ComposedPolicyGradient(
                baseline="leave_one_out",
                normalisation="none",
                ratio="sequence_product",
                trust_region="none",
                aggregation="sequence_mean",
                correction="bypass",
            ),
            2,
        ),
    ],
    ids=["reinforce", "reinforce against the sampler", "rloo", "ratio of the product"],
)
def test_the_product_of_the_token_ratios_makes_off_policy_data_exact(algorithm: PolicyGradient, group_size: int):
    assert_same(ascent(algorithm, [LONG], group_size, off_policy=True), exact([LONG]))


@catalogue(
    "correction, expected",
    [
        ("none", -0.1269104985),
        (Correction(action="full"), 0.9481566793),
        ("tis", 0.5883106903),
        ("icepop", 0.7580282326),
        ("mis", -0.2921741574),
        ("seq_tis", 0.6469976491),
        ("seq_mis", -0.4241609037),
        (Correction(level="geometric", action="full"), 0.7045725583),
    ],
)
def test_every_bound_and_every_other_level_is_biased(correction, expected: float):
    """The reference is far from the policy. Masks drop completions that it rarely writes and the policy prefers."""
    bent = cosine(ascent(REINFORCE(baseline="none", correction=correction), [LONG], 1, off_policy=True), exact([LONG]))
    assert bent == pytest.approx(expected, rel=1e-8)


# The expectation when the objective is not E[R]


def token_by_token(world: World, objective_of: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return the sum over positions t of the gradient of an expectation in which only the choice of token t can change.

    `objective_of(logprobs_CT, t)` is that expectation, given log-probabilities in which all other positions are frozen.
    """
    logprobs_CT = world.logprobs_CT(world.weights)
    here_TT = torch.eye(logprobs_CT.shape[1], dtype=torch.bool)
    parts = [
        objective_of(torch.where(here_T, logprobs_CT, logprobs_CT.detach()), t) for t, here_T in enumerate(here_TT)
    ]
    return gradient(torch.stack(parts).sum(), world)


def test_with_gamma_each_token_is_credited_with_the_reward_discounted_from_it_on():
    """Token t climbs E[gamma^(T - 1 - t) R]. Like in all public implementations there is no gamma^t in front. The sum
    is thus not the gradient of a single objective, and in particular not of the discounted reward E[gamma^(T - 1)
    R]."""
    gamma = 0.5
    last_C = LONG.mask_CT.sum(dim=-1) - 1

    def discounted(logprobs_CT: Tensor, t: int) -> Tensor:
        reward_C = gamma ** (last_C - t) * LONG.rewards_C * (t <= last_C)
        return (logprobs_CT.sum(dim=-1).exp() * reward_C).sum()

    estimated = ascent(REINFORCE(baseline="none", gamma=gamma), [LONG], 1)
    assert_same(estimated, token_by_token(LONG, discounted))

    of_one_objective = exact([replace(LONG, rewards_C=gamma**last_C * LONG.rewards_C)])
    assert_same(token_by_token(LONG, lambda x, t: gamma**t * discounted(x, t)), of_one_objective)
    assert cosine(estimated, of_one_objective) == pytest.approx(0.9948450347, rel=1e-8)


def next_token_kl(world: World, *, forward: bool) -> Tensor:
    """Return the gradient of E[sum_t KL_t], where KL_t is the KL over the next token and the prefixes are held fixed.

    It is KL(reference || policy) with `forward`, and KL(policy || reference) without.
    """
    total = torch.zeros((), dtype=torch.float64)
    for prefix in {c[:t] for c in world.completions for t in range(len(c))}:
        policy_V, ref_V = (world.next_token_V(w, prefix) for w in (world.weights, world.ref_weights))
        reached = sum(world.next_token_V(world.weights, prefix[:t])[token].item() for t, token in enumerate(prefix))
        kl = (ref_V.exp() * (ref_V - policy_V)).sum() if forward else (policy_V.exp() * (policy_V - ref_V)).sum()
        total = total + math.exp(reached) * kl
    return gradient(total, world)


@catalogue(
    "estimator, forward",
    [("k2", False), ("k1_corrected", False), ("k2_corrected", False), ("k3_corrected", False), ("k3", True)],
)
def test_kl_in_the_loss_is_the_kl_of_each_next_token(estimator: str, forward: bool):
    """Equal rewards leave only the KL. Pathwise k3 gives the gradient of the other KL, the forward one."""
    world = replace(SHORT, rewards_C=torch.ones_like(SHORT.rewards_C))
    algorithm = DrGRPO(max_completion_length=8, kl_coef=KL, kl_estimator=estimator)  # type: ignore[arg-type]
    assert_same(ascent(algorithm, [world], 2), -KL / 8 * next_token_kl(world, forward=forward))


def test_distillation_is_the_reverse_kl_to_the_teacher_at_each_next_token():
    """A sum over tokens is exact. The mean over a step's tokens is biased: their number depends on the tokens."""
    toward_teacher = -next_token_kl(LONG, forward=False)
    exactly = ComposedPolicyGradient(baseline="teacher", kl="none", **ALONE)
    assert_same(ascent(exactly, [LONG], 1), toward_teacher)
    bent = [
        cosine(ascent(Distillation(), [world], size), -next_token_kl(world, forward=False))
        for world, size in ((LONG, 2), (SHORT, 3))
    ]
    assert bent == pytest.approx([0.9953021223, 0.9994362696], rel=1e-8)
    assert biased(0.995, 0.999, "minus the KL of each next token") in Distillation().card.differs


def test_every_estimator_is_tried_here():
    """Each new algorithm of the family has its expectation computed here, or this file says why not."""
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    family = [cls for cls in ALGORITHMS.values() if issubclass(cls, PolicyGradient)]
    assert [cls.__name__ for cls in family if f"{cls.__name__}(" not in text] == []
