"""The exact optimum of preference losses: their minimum over every policy on four answers, in float64.

Answers of different length have rewards log 1, log 3, log 5, log 7, so Bradley-Terry preferences are fractions: p(i >
j) = w_i / (w_i + w_j). The data hold each ordered pair in exact proportion to that probability, and nothing is sampled.
A policy is a vector of logits over the answers. An answer's log-probability is spread over its tokens.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms.base import Algorithm
from posttrain.algorithms.cpo import CPO
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.ipo import IPO
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.length_normalized_dpo import LengthNormalizedDPO
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.robust_dpo import RobustDPO
from posttrain.algorithms.simpo import SimPO
from posttrain.types import Batch, count_totals

WORTH = (1, 3, 5, 7)
LENGTHS = (2, 4, 1, 3)
REFERENCE = (0.4, 0.1, 0.2, 0.3)
COMMON = 120
"""Number of comparisons of each pair of answers. It is a multiple of every w_i + w_j."""
K = range(4)
ANSWERS = torch.tensor(LENGTHS, dtype=torch.float64)
REWARDS = torch.tensor(WORTH, dtype=torch.float64).log()
REF_LOGPROBS = torch.tensor(REFERENCE, dtype=torch.float64).log()


def wins(i: int, j: int) -> int:
    """Return how often answer i is preferred to answer j in COMMON comparisons."""
    return COMMON * WORTH[i] // (WORTH[i] + WORTH[j])


def comparisons(drawn: tuple[int, ...] = (1, 1, 1, 1), wrong_in_10: int = 0) -> Tensor:
    """Return `[2, N]`, the chosen and rejected answers of every comparison. `drawn` holds the relative frequencies of
    the answers, and `wrong_in_10` the number of reversed labels out of ten."""
    found = []
    for i, j in product(K, K):
        if i != j:
            times = (10 - wrong_in_10) * wins(i, j) + wrong_in_10 * wins(j, i) if wrong_in_10 else wins(i, j)
            found += [(i, j)] * (drawn[i] * drawn[j] * times)
    return torch.tensor(found).T


def token_logprobs(logprobs_K: Tensor, rows_B: Tensor) -> Tensor:
    """Return `[B, T]`, the log-probability of each answer, spread equally over its tokens."""
    mask_KT = torch.arange(max(LENGTHS)) < ANSWERS[:, None]
    return torch.where(mask_KT, (logprobs_K / ANSWERS)[:, None], torch.nan)[rows_B]


def minimum(loss_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `[K]`, the probabilities that minimise a loss of log-probabilities. The search starts at the reference."""
    logits_K = REF_LOGPROBS.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [logits_K], max_iter=1000, tolerance_grad=1e-11, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(logits_K.log_softmax(dim=-1))
        loss.backward()
        return loss

    optimizer.step(closure)
    return logits_K.detach().softmax(dim=-1)


def trained(algorithm: Algorithm, pairs_2N: Tensor) -> Tensor:
    """Return `[K]`, the policy with the smallest loss over these comparisons. Each step uses all of them."""
    rows_B = pairs_2N.flatten()
    ref_BT = token_logprobs(REF_LOGPROBS, rows_B)
    batch = Batch.from_pairs(~ref_BT.isnan(), ref_BT)
    totals = count_totals(batch)
    return minimum(lambda logprobs_K: algorithm.loss(token_logprobs(logprobs_K, rows_B), batch, totals)[0])


def total_variation(p_K: Tensor, q_K: Tensor) -> float:
    return (p_K - q_K).abs().sum().item() / 2


def normalised_by_length(per_token_K: Tensor) -> Tensor:
    """Return `[K]`, exp(|y| (x + c)), where c makes it sum to 1. The sum rises with c, so bisection finds it."""
    low, high = -100.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (ANSWERS * (per_token_K + middle)).exp().sum() < 1 else (low, middle)
    return (ANSWERS * (per_token_K + low)).exp()


# Against a reference


@catalogue("beta", [0.5, 1.0, 3.0])
def test_dpo_tilts_the_reference_by_the_reward(beta: float):
    expected_K = (REF_LOGPROBS + REWARDS / beta).softmax(dim=-1)
    assert total_variation(trained(DPO(beta=beta), comparisons()), expected_K) < 1e-6


def test_which_answers_were_compared_how_often_does_not_matter_to_dpo():
    expected_K = (REF_LOGPROBS + REWARDS).softmax(dim=-1)
    assert total_variation(trained(DPO(beta=1), comparisons(drawn=(2, 1, 1, 2))), expected_K) < 1e-6


def test_robust_dpo_finds_the_same_policy_from_noisy_labels():
    """Every tenth label is wrong. DPO itself ends elsewhere."""
    expected_K = (REF_LOGPROBS + REWARDS).softmax(dim=-1)
    noisy = comparisons(wrong_in_10=1)
    assert total_variation(trained(RobustDPO(beta=1, label_smoothing=0.1), noisy), expected_K) < 1e-6
    assert total_variation(trained(DPO(beta=1), noisy), expected_K) > 0.02


def test_length_normalised_dpo_tilts_by_the_reward_per_token():
    """The optimum has log-ratio / |y| = reward / beta + c."""
    expected_K = normalised_by_length(REWARDS / 2 + REF_LOGPROBS / ANSWERS)
    assert total_variation(trained(LengthNormalizedDPO(beta=2), comparisons()), expected_K) < 1e-6


@catalogue("tau", [0.1, 0.5])
@catalogue("drawn", [(1, 1, 1, 1), (1, 2, 3, 1)])
def test_ipo_with_sums_tilts_by_the_win_rate_against_who_is_drawn(tau: float, drawn: tuple[int, ...]):
    """pi = reference * exp(p(y > mu) / tau) / Z for pairs drawn from mu. An answer beats itself half the time."""
    mu_K = torch.tensor(drawn, dtype=torch.float64) / sum(drawn)
    win_rate_K = torch.sigmoid(REWARDS[:, None] - REWARDS) @ mu_K
    expected_K = (REF_LOGPROBS + win_rate_K / tau).softmax(dim=-1)
    found_K = trained(IPO(tau=tau, length_average=False), comparisons(drawn))
    assert total_variation(found_K, expected_K) < 1e-6


def test_ipo_with_averages_has_another_optimum():
    """The optimum tilts by the same win rate per token: log-ratio / |y| = p(y > mu) / tau + c."""
    win_rate_K = torch.sigmoid(REWARDS[:, None] - REWARDS).mean(dim=-1)
    expected_K = normalised_by_length(win_rate_K / 0.5 + REF_LOGPROBS / ANSWERS)
    found_K = trained(IPO(tau=0.5, length_average=True), comparisons())
    assert total_variation(found_K, expected_K) < 1e-6
    assert total_variation(found_K, (REF_LOGPROBS + win_rate_K / 0.5).softmax(dim=-1)) > 0.05


# Without a reference


def test_cpo_without_likelihood_knows_the_reward_only():
    found_K = trained(CPO(beta=0.5, alpha=0), comparisons())
    assert total_variation(found_K, (REWARDS / 0.5).softmax(dim=-1)) < 1e-6


@catalogue("beta", [1.0, 2.5])
def test_simpo_without_a_target_has_the_reward_per_token(beta: float):
    """pi = exp(|y| (reward / beta + c)), where c makes it sum to 1."""
    found_K = trained(SimPO(beta=beta, gamma=0), comparisons())
    assert total_variation(found_K, normalised_by_length(REWARDS / beta)) < 1e-6


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


def simpo_by_coordinates(beta: float, gamma: float) -> Tensor:
    """Return the minimum of sum_ij p(i > j) log(1 + exp(gamma - beta (a_i - a_j))). It is convex in a: find one a at a
    time by bisecting its derivative. A constant remains, for which the probabilities exp(|y| a) sum to 1."""
    a = [0.0] * 4

    def slope(i: int, value: float) -> float:
        total = 0.0
        for j in K:
            if j != i:
                total -= wins(i, j) * sigmoid(gamma - beta * (value - a[j]))
                total += wins(j, i) * sigmoid(gamma - beta * (a[j] - value))
        return total

    for _ in range(300):
        for i in (1, 2, 3):
            low, high = -50.0, 50.0
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if slope(i, middle) < 0 else (low, middle)
            a[i] = low
    return normalised_by_length(torch.tensor(a, dtype=torch.float64))


@catalogue("gamma", [0.5, 1.5])
def test_simpo_with_a_target_has_the_minimum_of_its_convex_problem(gamma: float):
    found_K = trained(SimPO(beta=2, gamma=gamma), comparisons())
    assert total_variation(found_K, simpo_by_coordinates(2, gamma)) < 1e-6
    assert total_variation(found_K, normalised_by_length(REWARDS / 2)) > 0.01  # a target moves the optimum


def orpo_objective(p: list[float], weight: float, per_token: bool) -> float:
    """Return likelihood plus odds ratio, written out for the probabilities of the four answers."""
    mean = [math.log(p[k]) / LENGTHS[k] for k in K]
    odds = [m - math.log(-math.expm1(m)) for m in mean]
    pairs = [(i, j, wins(i, j)) for i, j in product(K, K) if i != j]
    nll = -sum(n * (mean[i] * LENGTHS[i] if per_token else mean[i]) for i, _, n in pairs)
    nll /= sum(n * (LENGTHS[i] if per_token else 1) for i, _, n in pairs)
    return nll + weight * sum(n * softplus(odds[j] - odds[i]) for i, j, n in pairs) / sum(n for *_, n in pairs)


def by_pattern_search(objective: Callable[[list[float]], float]) -> Tensor:
    """Minimise over probabilities without derivatives: step along each axis, and halve the step if no axis helps."""

    def probabilities(u: list[float]) -> list[float]:
        total = sum(math.exp(x) for x in [0.0, *u])
        return [math.exp(x) / total for x in [0.0, *u]]

    u, step = [0.0, 0.0, 0.0], 1.0
    best = objective(probabilities(u))
    while step > 1e-9:
        for axis, sign in product(range(3), (1, -1)):
            moved = [x + sign * step * (k == axis) for k, x in enumerate(u)]
            if (value := objective(probabilities(moved))) < best:
                u, best = moved, value
                break
        else:
            step /= 2
    return torch.tensor(probabilities(u), dtype=torch.float64)


@catalogue("beta", [0.1, 1.0])
@catalogue("normalization", ["token_mean", "sequence_mean"])
def test_orpo_has_the_minimum_that_a_search_without_derivatives_finds(beta: float, normalization: str):
    expected_K = by_pattern_search(lambda p: orpo_objective(p, beta, normalization == "token_mean"))
    found_K = trained(ORPO(beta=beta, nll_normalization=normalization), comparisons())  # type: ignore[arg-type]
    assert total_variation(found_K, expected_K) < 1e-4


# Labels

DESIRABLE_IN_10 = (9, 7, 5, 3)


def trained_on_labels(algorithm: KTO, *steps: int, learning_rate: float) -> Iterator[Tensor]:
    """Yield `[K]`, the policy after each of these numbers of steps of gradient descent on ten labels per answer, with
    z0 from mismatched rows."""
    rows_B = torch.arange(4).repeat_interleave(10)
    labels_B = torch.tensor([k < n for n in DESIRABLE_IN_10 for k in range(10)])
    ref_BT = token_logprobs(REF_LOGPROBS, rows_B)
    logits_K = REF_LOGPROBS.clone().requires_grad_()
    for step in range(1, max(steps) + 1):
        logprobs_K = logits_K.log_softmax(dim=-1)
        mismatched_B = (logprobs_K - REF_LOGPROBS).detach()[rows_B].roll(-1)  # each row gets the answer of the next row
        batch = algorithm.prepare(Batch.from_labels(~ref_BT.isnan(), labels_B, ref_BT, mismatched_B))
        loss, _ = algorithm.loss(token_logprobs(logprobs_K, rows_B), batch, count_totals(batch))
        (gradient_K,) = torch.autograd.grad(loss, logits_K)
        logits_K = (logits_K - learning_rate * gradient_K).detach().requires_grad_()
        if step in steps:
            yield logits_K.detach().softmax(dim=-1)


@pytest.mark.parametrize(
    ("desirable", "undesirable", "keeps"),
    [
        (1.0, 1.5, [True, True, False, False]),
        pytest.param(1.0, 1.0, [True, True, None, False], marks=pytest.mark.slow),
        pytest.param(3.0, 1.0, [True] * 4, marks=pytest.mark.slow),
    ],
)
def test_kto_leaves_no_mass_where_undesirable_labels_outweigh(desirable, undesirable, keeps):
    """An answer with a share p of desirable labels vanishes if desirable * p < undesirable * (1 - p). KTO thus takes a
    majority vote, and does not match proportions.

    If both sides are equal, nothing pulls on the answer: None.
    """
    algorithm = KTO(beta=0.1, desirable_weight=desirable, undesirable_weight=undesirable)
    shorter, longer = trained_on_labels(algorithm, 100, 400, learning_rate=100)
    for k, keep in enumerate(keeps):
        share = DESIRABLE_IN_10[k] / 10
        assert keep is None or keep == (desirable * share >= undesirable * (1 - share))
        if keep is False:
            assert longer[k] < 1e-4
            assert longer[k] < shorter[k] / 3  # and it keeps falling
        elif keep:
            assert longer[k] > 0.01
