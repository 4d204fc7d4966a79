"""What an algorithm is given of answers with tokens that are too old to be trained."""

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms import ALGORITHMS
from posttrain.experience.assemble import assemble
from posttrain.experience.group import Group
from posttrain.types import Completion, Experience, Prompt


def sampled(*answers: tuple[int, int], max_lag: int | None) -> Experience:
    """Equally rewarded answers of so many tokens, of which so many are five versions old."""
    completions = tuple(
        Completion(
            ids=(7,) * length,
            logprobs=(-1.0,) * length,
            versions=(0,) * stale + (5,) * (length - stale),
            finish_reason="eos",
            text="",
        )
        for length, stale in answers
    )
    group = Group(prompt=Prompt(index=0, ids=(1, 2), text="q"), completions=completions)
    experience = assemble([group], pad_id=0, version=5, max_lag=max_lag)
    return replace(experience, rewards_PG=torch.ones(1, len(answers)))


@pytest.mark.parametrize(
    ("algorithm", "settings", "answers"),
    [
        ("dapo", {"max_completion_length": 100, "overlong_buffer": 20, "dynamic_sampling": False}, [(95, 60), (20, 0)]),
        ("kimi_k2", {"token_budget": 50}, [(95, 60), (20, 0)]),
        ("kimi_k15", {"length_coef": 1.0}, [(95, 60), (50, 0)]),
        ("grpo", {}, [(95, 60), (20, 0)]),
    ],
)
def test_the_length_of_an_answer_counts_its_old_tokens(algorithm, settings, answers):
    chosen = ALGORITHMS[algorithm](**settings)
    whole, partly = (sampled(*answers, max_lag=max_lag) for max_lag in (None, 2))
    expected_BT = chosen.advantages(whole) * partly.completion_mask_BT
    assert partly.lengths_PG.tolist() == [[length for length, _ in answers]]
    assert partly.trained_PG.tolist() == [[length - stale for length, stale in answers]]
    assert torch.equal(chosen.advantages(partly), expected_BT)
    assert bool(expected_BT.any()) == (algorithm != "grpo"), "only the length tells these answers apart"


def test_an_answer_with_old_tokens_alone_makes_no_pair():
    experience = replace(sampled((4, 4), (3, 0), max_lag=2), rewards_PG=torch.tensor([[1.0, 0.0]]))
    assert ALGORITHMS["online_dpo"]().to_batch(experience).num_rows == 0
