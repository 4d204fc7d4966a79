"""Rewards of single tokens in plain tensors: which algorithms read them, and which refuse them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.algorithms.variants import VARIANTS
from tests.catalogue import catalogue

from posttrain.algorithms import REINFORCE, OnlineDPO, PolicyGradient
from posttrain.algorithms.composition.baselines import BASELINES
from posttrain.algorithms.composition.shaping import NORMALISATIONS, SHAPINGS
from posttrain.algorithms.policy_gradient import ComposedPolicyGradient
from posttrain.algorithms.reinforce import MovingAverage
from posttrain.errors import ConfigError
from posttrain.testing.steps import make_experience
from posttrain.types import Experience

MASK_BT = torch.ones(4, 3)
REWARDS_PG = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
GIVEN = {
    "values_BT": torch.tensor([0.1, 0.2, 0.3]).repeat(4, 1),
    "old_logprobs_BT": torch.full((4, 3), -1.0),
    "squared_probs_BT": torch.tensor([0.5, 0.3, 0.4]).repeat(4, 1),
    "greedy_rewards_P": torch.tensor([0.5]),
    "truncated_PG": torch.tensor([[True, False, False, False]]),
}
READ_BY = {
    "length": {"correct_at": 1.0},
    "budget": {"token_budget": 2},
    "score": {"score_clip": 0.75, "missing_eos_penalty": 0.5},
    "soft_overlong": {"max_completion_length": 3, "overlong_buffer": 2},
}
DEAF = [name for name, a in VARIANTS.items() if isinstance(a, PolicyGradient) and not a.reads_token_rewards]


def on_the_last_token(value: float = 1.0) -> Experience:
    """Return the same rewards, given to the last token of each completion instead of to the completion."""
    tokens_BT = torch.zeros(4, 3)
    tokens_BT[:, -1] = value * REWARDS_PG[0]
    return Experience.from_rewards(torch.zeros(1, 4), completion_mask_BT=MASK_BT, token_rewards_BT=tokens_BT)


@pytest.mark.parametrize("baseline", ["none", "batch_mean", "moving_average"])
def test_a_reward_of_the_last_token_is_worth_that_of_the_completion(baseline):
    algorithm, whole = REINFORCE(baseline=baseline), Experience.from_rewards(REWARDS_PG, completion_mask_BT=MASK_BT)
    state = algorithm.next_state(MovingAverage(), whole)
    assert algorithm.next_state(MovingAverage(), on_the_last_token()) == state
    expected_BT = algorithm.advantages(whole, state)
    torch.testing.assert_close(algorithm.advantages(on_the_last_token(), state), expected_BT)


def compositions() -> Iterator[ComposedPolicyGradient]:
    """Every combination of baseline, shaping and normalisation that reads rewards of tokens."""
    for baseline, shaping, normalisation in product(BASELINES, SHAPINGS, NORMALISATIONS):
        choices = {"baseline": baseline, "shaping": shaping, "normalisation": normalisation, "kl": "none"}
        with contextlib.suppress(ConfigError):  # choices that exclude each other
            algorithm = ComposedPolicyGradient(**choices, **READ_BY.get(shaping, {}))
            if algorithm.reads_token_rewards:
                yield algorithm


@catalogue("algorithm", compositions(), lambda one: (one.baseline, one.shaping, one.normalisation))
def test_so_it_is_with_every_scale_and_shaping_that_reads_them(algorithm):
    whole = Experience.from_rewards(REWARDS_PG, completion_mask_BT=MASK_BT, **GIVEN)
    alike = replace(on_the_last_token(), **GIVEN)
    state = algorithm.initial_state()
    torch.testing.assert_close(algorithm.advantages(alike, state), algorithm.advantages(whole, state))
    assert algorithm.next_state(state, alike) == algorithm.next_state(state, whole)


@catalogue("name", DEAF)
def test_whoever_would_leave_them_out_refuses_them(name):
    experience = make_experience()
    given = torch.ones_like(experience.completion_mask_BT, dtype=experience.rewards_PG.dtype)
    spoken = Experience(**{**vars(experience), "token_rewards_BT": given})
    with pytest.raises(ConfigError, match="token_rewards_BT, which this algorithm does not read"):
        VARIANTS[name].to_batch(spoken, VARIANTS[name].initial_state())


def test_pairs_of_completions_have_no_use_for_them():
    with pytest.raises(ConfigError, match="token_rewards_BT"):
        OnlineDPO().to_batch(on_the_last_token())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_one_that_is_no_number_is_refused(value):
    with pytest.raises(ConfigError, match=r"token_rewards_BT\[0, 2\]"):
        on_the_last_token(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_of_a_reward_is_a_finite_number(value):
    weights_K = torch.tensor([1.0, value])
    with pytest.raises(ConfigError, match=r"reward_weights_K\[1\]"):
        Experience.from_rewards(REWARDS_PG, completion_mask_BT=MASK_BT, reward_weights_K=weights_K)
