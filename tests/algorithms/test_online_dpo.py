"""Online DPO: the pairs that a group gives, the equality with the offline loss, and the exact optimum of the policy."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.preference_data import NAN, P, evaluate
from tests.algorithms.test_preference_optimum import (
    REF_LOGPROBS,
    REFERENCE,
    REWARDS,
    K,
    token_logprobs,
    total_variation,
)
from tests.catalogue import catalogue, examples
from torch import Tensor

from posttrain.algorithms import DPO, IPO, Algorithm, Hinge, OnlineDPO
from posttrain.config import SampledPairsConfig
from posttrain.errors import ConfigError
from posttrain.experience.assemble import pair_roles
from posttrain.experience.group import groups_of
from posttrain.experience.sampled_pairs import AnsweredPrompt, choose
from posttrain.rewards.scores import Scores
from posttrain.types import Batch, Completion, Experience, Prompt, Tokens, count_totals


def experience(rewards_PG: list[list[float]], **given: Any) -> Experience:
    """Return completions of two tokens each, with the given rewards."""
    rows = len(rewards_PG) * len(rewards_PG[0])
    mask_BT = torch.tensor([[False, True, True]]).expand(rows, -1)
    return Experience.from_rewards(
        torch.tensor(rewards_PG), **{"completion_mask_BT": mask_BT, "ref_logprobs_BT": torch.zeros(rows, 3), **given}
    )


def pairs(algorithm: OnlineDPO, of: Experience) -> list[tuple[int, int]]:
    """Return the (chosen, rejected) rows of the experience."""
    batch = algorithm.to_batch(of)
    assert batch.row_ids_B is not None
    chosen_N, rejected_N = batch.pairs
    return list(zip(batch.row_ids_B[chosen_N].tolist(), batch.row_ids_B[rejected_N].tolist(), strict=True))


# Which pairs


def test_the_best_of_a_group_meets_the_worst():
    assert pairs(OnlineDPO(), experience([[0.3, 0.9, 0.1, 0.5], [2, 1, 1, 0]])) == [(1, 2), (4, 7)]


def test_all_meets_every_two_and_each_row_is_there_once_for_each_of_its_pairs():
    assert pairs(OnlineDPO(pairs="all"), experience([[0.3, 0.9, 0.1]])) == [(1, 0), (0, 2), (1, 2)]


def test_a_tie_trains_nothing_and_is_counted():
    tied = experience([[1, 1], [0, 1], [0.5, 0.5]])
    assert pairs(OnlineDPO(), tied) == [(3, 2)]
    metrics = OnlineDPO().step_metrics(tied, OnlineDPO().to_batch(tied))
    assert float(metrics["ties"]) == pytest.approx(2 / 3)
    assert float(metrics["score/margin"]) == 1.0


def test_first_takes_the_answer_that_was_sampled_first_as_better():
    assert pairs(OnlineDPO(ties="first"), experience([[1, 1], [0, 1]])) == [(0, 1), (3, 2)]


def test_all_counts_its_ties_by_pairs():
    half = experience([[1, 1, 0]])
    assert pairs(OnlineDPO(pairs="all"), half) == [(0, 2), (1, 2)]
    found = OnlineDPO(pairs="all").step_metrics(half, OnlineDPO(pairs="all").to_batch(half))
    assert float(found["ties"]) == pytest.approx(1 / 3)


def test_equal_answers_are_a_tie_whatever_their_scores():
    """If a judge contradicts itself about equal answers, its scores teach nothing."""
    ids_BT = torch.tensor([[1, 7, 8], [1, 7, 8], [1, 7, 8], [1, 7, 9]])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([3, 3, 3, 3]))
    assert pairs(OnlineDPO(), experience([[1, 0], [1, 0]], tokens=tokens)) == [(2, 3)]


def test_where_best_and_worst_are_the_same_words_the_widest_gap_of_others_decides():
    """The answers are A, B, A. The gap between the two A's is noise, but B against either A is a real comparison."""
    ids_BT = torch.tensor([[1, 7, 8], [1, 7, 9], [1, 7, 8]])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([3, 3, 3]))
    assert pairs(OnlineDPO(), experience([[5, 3, 1]], tokens=tokens)) == [(0, 1)]
    assert pairs(OnlineDPO(), experience([[5, 2, 1]], tokens=tokens)) == [(0, 1)]
    assert pairs(OnlineDPO(), experience([[5, 4, 1]], tokens=tokens)) == [(1, 2)]
    of = experience([[5, 3, 1]], tokens=tokens)
    assert float(OnlineDPO().step_metrics(of, OnlineDPO().to_batch(of))["ties"]) == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 0.0, 1.0, 2.0])), min_size=2, max_size=6),
)
def test_online_and_round_by_round_the_same_gap_decides(group):
    """sampled_pairs.choose and the groups of an online step follow the same rule."""
    words, scores = zip(*group, strict=True)
    ids_BT = torch.tensor([[1, 7, word] for word in words])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=torch.full((len(words),), 3))
    of = experience([[NAN if score is None else score for score in scores]], tokens=tokens)
    completions = [
        Completion(ids=(7, w), logprobs=(0, 0), versions=(0, 0), finish_reason="eos", text="") for w in words
    ]
    asked = AnsweredPrompt(prompt=Prompt(index=0, ids=(1,), text=""), completions=completions, scores=scores, parts={})
    online, (chosen, _) = pairs(OnlineDPO(), of), choose(SampledPairsConfig(), asked, 0)
    gap = [scores[c] - scores[r] for c, r in online]
    assert gap == [scores[c] - scores[r] for c, r in chosen]
    assert all(words[c] != words[r] for c, r in online)


def test_a_completion_without_a_score_takes_no_part():
    assert pairs(OnlineDPO(), experience([[NAN, 0.2, 0.7], [NAN, NAN, 3.0]])) == [(2, 1)]
    assert pairs(OnlineDPO(pairs="all"), experience([[NAN, 0.2, 0.7]])) == [(2, 1)]


def test_an_empty_completion_takes_no_part():
    mask_BT = torch.tensor([[False, True, True], [False, False, False], [False, True, False]])
    assert pairs(OnlineDPO(), experience([[0.5, 0.9, 0.7]], completion_mask_BT=mask_BT)) == [(2, 0)]


def test_the_penalty_is_for_answers_that_were_cut():
    cut = experience([[0.6, 0.5], [1.0, 0.5]], truncated_PG=torch.tensor([[True, False], [True, False]]))
    assert pairs(OnlineDPO(), cut) == [(0, 1), (2, 3)]
    assert pairs(OnlineDPO(missing_eos_penalty=0.2), cut) == [(1, 0), (2, 3)]
    metrics = OnlineDPO(missing_eos_penalty=0.2).step_metrics(cut, OnlineDPO().to_batch(cut))
    assert float(metrics["score/mean"]) == pytest.approx((0.4 + 0.5 + 0.8 + 0.5) / 4)
    assert float(metrics["score/margin"]) == pytest.approx((0.1 + 0.3) / 2)
    assert float(metrics["eos_fraction"]) == 0.5


def test_ties_alone_are_a_batch_without_rows():
    batch = OnlineDPO().to_batch(experience([[1, 1], [0, 0]]))
    assert batch.num_rows == 0
    assert count_totals(batch).tokens == count_totals(batch).pairs == 0
    assert batch.units == []


def test_one_completion_has_nothing_to_be_compared_with():
    with pytest.raises(
        ConfigError, match=r"group_size = 1, but online_dpo compares .*allowed: an integer of at least 2"
    ):
        OnlineDPO().to_batch(experience([[1.0]]))


def test_the_kl_is_that_of_every_scored_completion_and_of_no_padding():
    sampled_BT = torch.tensor([[NAN, -1.0, -2.0], [NAN, -0.5, NAN]])
    reference_BT = torch.tensor([[NAN, -1.5, -1.0], [NAN, -0.25, NAN]])
    of = experience(
        [[1, 0]],
        completion_mask_BT=~sampled_BT.isnan(),
        sampling_logprobs_BT=sampled_BT,
        ref_logprobs_BT=reference_BT,
    )
    metrics = OnlineDPO().step_metrics(of, OnlineDPO().to_batch(of))
    k3 = sum(math.exp(-d) - 1 + d for d in (0.5, -1.0, -0.25)) / 3
    assert float(metrics["kl"]) == pytest.approx(k3)
    assert float(metrics["objective/kl"]) == pytest.approx(((0.5 - 1.0) + (-0.25)) / 2)


# The loss is that of the offline method


OFFLINE = [
    (OnlineDPO(beta=0.3), DPO(beta=0.3)),
    (OnlineDPO(beta=0.3, label_smoothing=0.1), DPO(beta=0.3, label_smoothing=0.1)),
    (OnlineDPO(loss="ipo", beta=0.3), IPO(tau=0.3, length_average=False)),
    (OnlineDPO(loss="hinge", beta=0.3), Hinge(beta=0.3)),
]


@catalogue("algorithm, offline", OFFLINE)
def test_on_the_same_pairs_it_is_the_offline_loss(algorithm: OnlineDPO, offline: Algorithm):
    found, expected = P.evaluate(algorithm), P.evaluate(offline)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.gradient_BT, expected.gradient_BT)
    assert {n: float(m) for n, m in found.metrics.items()} == pytest.approx(
        {n: float(m) for n, m in expected.metrics.items()}, nan_ok=True
    )


def test_a_fresh_policy_has_log_2_and_no_accuracy():
    of = experience([[1, 0], [0, 1]])
    algorithm, logprobs_BT = OnlineDPO(), torch.zeros(4, 3, requires_grad=True)
    found = evaluate(algorithm, logprobs_BT, algorithm.to_batch(of))
    assert found.loss.item() == pytest.approx(math.log(2))
    assert found.metric("rewards/accuracies") == 0


# Invariances


VARIANTS = [
    OnlineDPO(pairs="all"),
    OnlineDPO(loss="ipo", pairs="all", ties="first"),
    OnlineDPO(loss="hinge", label_smoothing=0.2),
]
every_variant = pytest.mark.parametrize("algorithm", VARIANTS, ids=("all", "ipo first", "hinge"))
few_examples = examples(6, 20)


def random_experience(seed: int) -> Experience:
    """Return three prompts with four completions each: two ties, one unscored, one empty, and NaN around the tokens."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask_BT = uniform(12, 6) < 0.6
    mask_BT[:, 0], mask_BT[:, 1], mask_BT[6] = False, True, False
    rewards_PG = uniform(3, 4)
    rewards_PG[1, 1], rewards_PG[2, 3], rewards_PG[0, 2] = NAN, rewards_PG[2, 0], rewards_PG[0, 3]
    numbers = [(-2 * uniform(12, 6)).masked_fill(~mask_BT, NAN) for _ in range(2)]
    return Experience.from_rewards(
        rewards_PG, completion_mask_BT=mask_BT, sampling_logprobs_BT=numbers[0], ref_logprobs_BT=numbers[1]
    )


def step(algorithm: OnlineDPO, of: Experience) -> tuple[Tensor, Batch]:
    """Return the log-probabilities of the batch's rows, as a leaf that requires a gradient, and the batch."""
    batch = algorithm.to_batch(of)
    assert batch.sampling_logprobs_BT is not None
    return batch.sampling_logprobs_BT.clone().requires_grad_(), batch


@every_variant
@few_examples
@given(seed=st.integers(0, 10_000), parts=st.integers(1, 6), data=st.data())
def test_any_split_of_the_pairs_sums_to_the_same(algorithm: OnlineDPO, seed: int, parts: int, data: st.DataObject):
    logprobs_BT, batch = step(algorithm, random_experience(seed))
    totals, whole = count_totals(batch), evaluate(algorithm, logprobs_BT, batch)
    units = batch.units
    owner = data.draw(st.lists(st.integers(0, parts - 1), min_size=len(units), max_size=len(units)))
    dealt = [[b for u, unit in enumerate(units) if owner[u] == part for b in unit] for part in range(parts)]
    losses = [algorithm.loss(logprobs_BT[rows], batch.rows(rows), totals)[0] for rows in dealt if rows]
    torch.testing.assert_close(torch.stack(losses).sum(), whole.loss)
    (gradient_BT,) = torch.autograd.grad(torch.stack(losses).sum(), logprobs_BT)
    torch.testing.assert_close(gradient_BT, whole.gradient_BT)


@every_variant
@few_examples
@given(seed=st.integers(0, 10_000), data=st.data())
def test_the_order_of_the_rows_and_padding_do_not_matter(algorithm: OnlineDPO, seed: int, data: st.DataObject):
    logprobs_BT, batch = step(algorithm, random_experience(seed))
    whole = evaluate(algorithm, logprobs_BT, batch)
    order = data.draw(st.permutations(range(batch.num_rows)))
    moved = evaluate(algorithm, logprobs_BT[order].detach().requires_grad_(), batch.rows(order))
    torch.testing.assert_close(moved.loss, whole.loss)
    torch.testing.assert_close(moved.gradient_BT, whole.gradient_BT[order])

    def wider(x_BT: Tensor) -> Tensor:
        return torch.nn.functional.pad(x_BT, (0, 2), value=False if x_BT.dtype == torch.bool else NAN)

    per_token = {name: x for name, x in vars(batch).items() if name.endswith("_BT") and x is not None}
    padded = replace(batch, **{name: wider(x_BT) for name, x_BT in per_token.items()})
    wide = evaluate(algorithm, wider(logprobs_BT.detach()).requires_grad_(), padded)
    torch.testing.assert_close(wide.loss, whole.loss)
    torch.testing.assert_close(wide.gradient_BT[:, :-2], whole.gradient_BT)


@few_examples
@given(seed=st.integers(0, 10_000), prompts=st.permutations(range(3)))
def test_pairs_follow_their_prompts(seed: int, prompts: list[int]):
    """A different order of the prompts gives the same pairs of completions."""
    of = random_experience(seed)
    rows = [4 * p + g for p in prompts for g in range(4)]
    moved = replace(
        of,
        rewards_PG=of.rewards_PG[prompts],
        scored_PG=of.scored_PG[prompts],
        truncated_PG=of.truncated_PG[prompts],
        completion_mask_BT=of.completion_mask_BT[rows],
        sampling_logprobs_BT=of.sampling_logprobs_BT[rows],  # type: ignore[index]
        ref_logprobs_BT=of.ref_logprobs_BT[rows],  # type: ignore[index]
    )
    algorithm = OnlineDPO(pairs="all")
    assert {(rows[a], rows[b]) for a, b in pairs(algorithm, moved)} == set(pairs(algorithm, of))


# The exact expectation and optimum: all pairs of four answers are enumerated, and nothing is sampled


ORDERED = list(product(K, K))
DRAWN_2N = torch.tensor(ORDERED).T


def preferred(kind: str) -> Tensor:
    """Return `[K, K]`, the probability that the first answer wins: Bradley-Terry for "drawn", else 0, 1/2 or 1."""
    ahead_KK = REWARDS[:, None] - REWARDS[None]
    return ahead_KK.sigmoid() if kind == "drawn" else (ahead_KK.sign() + 1) / 2


def expected_gradient(algorithm: OnlineDPO, logits_K: Tensor, kind: str) -> Tensor:
    """Return `[K]`, the expected gradient of the logits: over all pairs of answers and both labels, with their
    probabilities.

    Each row belongs to one pair, so weighting the gradients of rows weights those of pairs.
    """
    logprobs_K = logits_K.detach().requires_grad_()
    both_2M = torch.cat([DRAWN_2N, DRAWN_2N], dim=1)  # the first answer wins, then the second wins
    first_N, second_N = DRAWN_2N
    wins_N = preferred(kind)[first_N, second_N]
    probability_K = logits_K.softmax(dim=-1)
    weight_N = probability_K[first_N] * probability_K[second_N]
    weight_M = torch.cat([weight_N * wins_N, weight_N * (1 - wins_N)])
    rows_B = both_2M.T.flatten()
    rewards_PG = torch.tensor([[1.0, 0.0]] * len(ORDERED) + [[0.0, 1.0]] * len(ORDERED), dtype=torch.float64)
    ref_BT = token_logprobs(REF_LOGPROBS, rows_B)
    of = Experience.from_rewards(rewards_PG, completion_mask_BT=~ref_BT.isnan(), ref_logprobs_BT=ref_BT)
    batch, logprobs_BT = algorithm.to_batch(of), token_logprobs(logprobs_K.log_softmax(dim=-1), rows_B)
    assert batch.row_ids_B is not None
    loss, _ = algorithm.loss(logprobs_BT[batch.row_ids_B], batch, count_totals(batch))
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT, retain_graph=True)
    weighed_BT = weight_M.repeat_interleave(2)[:, None] * len(weight_M) * gradient_BT
    return torch.autograd.grad(logprobs_BT, logprobs_K, weighed_BT.nan_to_num())[0]


def closed_form(algorithm: OnlineDPO, logits_K: Tensor, kind: str) -> Tensor:
    """Return the gradient of sum_ij sg[p_i p_j] (P_ij f(h_ij) + P_ji f(-h_ij)), in closed form for all pairs."""
    x_K = logits_K.detach().requires_grad_()
    ratio_K = x_K.log_softmax(dim=-1) - REF_LOGPROBS
    gap_KK = ratio_K[:, None] - ratio_K[None]
    probability_K, wins_KK = logits_K.softmax(dim=-1), preferred(kind)
    weight_KK = probability_K[:, None] * probability_K[None]
    f = {
        "dpo": lambda gap: -(algorithm.beta * gap).sigmoid().log(),
        "ipo": lambda gap: (gap - 1 / (2 * algorithm.beta)) ** 2,
        "hinge": lambda gap: (1 - algorithm.beta * gap).clamp(min=0),
    }[algorithm.link]
    expected = (weight_KK * (wins_KK * f(gap_KK) + (1 - wins_KK) * f(-gap_KK))).sum()
    return torch.autograd.grad(expected, x_K)[0]


@catalogue("kind", ["drawn", "certain"])
@catalogue("link", ["dpo", "ipo", "hinge"])
def test_the_expected_gradient_is_that_of_the_expected_loss(link: str, kind: str):
    algorithm = OnlineDPO(loss=link, beta=0.7)  # type: ignore[arg-type]
    logits_K = torch.tensor([0.3, -0.8, 0.1, 0.9], dtype=torch.float64)
    found, exact = expected_gradient(algorithm, logits_K, kind), closed_form(algorithm, logits_K, kind)
    assert exact.norm() > 1e-3
    torch.testing.assert_close(found, exact, atol=1e-12, rtol=0)


def test_deterministic_labels_of_the_reward_itself_give_the_same_gradient():
    """A run's steps have this form: the rewards are the answers' own, ties are skipped, and each pair is one step."""
    algorithm = OnlineDPO(beta=0.7)
    x_K = torch.tensor([0.3, -0.8, 0.1, 0.9], dtype=torch.float64).requires_grad_()
    logprobs_K, expected = x_K.log_softmax(dim=-1), torch.zeros((), dtype=torch.float64)
    for i, j in ORDERED:
        rows_B = torch.tensor([i, j])
        ref_BT = token_logprobs(REF_LOGPROBS, rows_B)
        of = Experience.from_rewards(REWARDS[rows_B][None], completion_mask_BT=~ref_BT.isnan(), ref_logprobs_BT=ref_BT)
        batch = algorithm.to_batch(of)
        assert batch.row_ids_B is not None
        loss, _ = algorithm.loss(token_logprobs(logprobs_K, rows_B)[batch.row_ids_B], batch, count_totals(batch))
        expected = expected + (logprobs_K[i] + logprobs_K[j]).exp().detach() * loss
    (found,) = torch.autograd.grad(expected, x_K)
    torch.testing.assert_close(found, closed_form(algorithm, x_K.detach(), "certain"), atol=1e-12, rtol=0)


def followed(algorithm: OnlineDPO, kind: str, steps: int, size: float) -> Tensor:
    """Return `[K]`, the policy after `steps` steps along the expected gradient, each taken from the current policy."""
    logits_K = REF_LOGPROBS.clone()
    for _ in range(steps):
        logits_K = logits_K - size * expected_gradient(algorithm, logits_K, kind)
    return logits_K.softmax(dim=-1)


@pytest.mark.slow
@catalogue("beta", [0.5, 1.0])
def test_with_drawn_labels_it_ends_at_the_reference_tilted_by_the_reward(beta: float):
    """The drawn pairs change with the policy, but the point at which no pair pulls any more does not."""
    expected_K = (REF_LOGPROBS + REWARDS / beta).softmax(dim=-1)
    assert total_variation(followed(OnlineDPO(beta=beta), "drawn", 1500, 8 / beta**2), expected_K) < 1e-4


@pytest.mark.slow
@catalogue("kind", ["drawn", "certain"])
def test_ipo_ends_where_the_policy_is_tilted_by_its_chance_to_beat_itself(kind: str):
    beta = 0.5
    found_K = followed(OnlineDPO(loss="ipo", beta=beta), kind, 1500, 0.5)
    tilted_K = (REF_LOGPROBS + preferred(kind) @ found_K / beta).softmax(dim=-1)
    assert total_variation(found_K, tilted_K) < 1e-5
    assert total_variation(found_K, torch.tensor(REFERENCE, dtype=torch.float64)) > 0.1


@pytest.mark.slow
def test_with_labels_that_are_certain_dpo_goes_on_towards_the_best_answer():
    algorithm, best = OnlineDPO(beta=1.0), int(REWARDS.argmax())
    at = [followed(algorithm, "certain", steps, 8.0)[best].item() for steps in (0, 50, 500)]
    assert at[0] == pytest.approx(REFERENCE[best])
    assert at[0] < at[1] < at[2]
    assert at[2] > 0.95


# What the rollout table shows


@catalogue(
    "algorithm, roles",
    [
        (OnlineDPO(), ["unused", "chosen", "rejected", "unscored"] + ["tie"] * 3 + ["unscored"]),
        (
            OnlineDPO(pairs="all"),
            ["chosen and rejected", "chosen", "rejected", "unscored"] + ["tie"] * 3 + ["unscored"],
        ),
        (
            OnlineDPO(ties="first"),
            ["unused", "chosen", "rejected", "unscored", "chosen", "unused", "rejected", "unscored"],
        ),
    ],
)
def test_each_completion_is_told_its_role(algorithm: OnlineDPO, roles: list[str]):
    rewards_PG = [[0.5, 0.9, 0.1, NAN], [1.0, 1.0, 1.0, NAN]]
    scores = Scores(
        rewards_PG=rewards_PG,
        scored_PG=[[not math.isnan(reward) for reward in group] for group in rewards_PG],
        parts={},
        failures=(),
        seconds={},
    )
    answer = Completion(ids=(7, 2), logprobs=(-1.0, -1.0), versions=(0, 0), finish_reason="eos", text="a")
    prompts = [Prompt(index=p, ids=(1,), text="q") for p in range(2)]
    groups = groups_of(prompts, [[answer] * 4] * 2, scores)
    assert pair_roles(algorithm.to_batch(experience(rewards_PG)), groups) == roles
