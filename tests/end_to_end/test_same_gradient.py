"""Promise 1: the gradient of the parameters does not depend on the split, the packing or the order of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from posttrain.algorithms import GRPO, PPO, REINFORCE, RLOO, SFT, DrGRPO, PolicyGradient
from posttrain.models.forward_path import forward_path
from posttrain.testing.on_a_model import (
    SPLITS,
    forward,
    gradient,
    gradients_of,
    padded_forward,
    tiny_experience,
    tiny_model,
)
from posttrain.types import Batch, Experience, count_totals

ALGORITHMS = [
    REINFORCE(baseline="none"),
    DISCOUNTS := REINFORCE(baseline="batch_mean", clip_low=0.2, clip_high=0.2, gamma=0.9, kl_coef=0.1),
    RLOO(),
    CLIPS := RLOO(clip_low=0.2, clip_high=0.2, kl_coef=0.05),
    GRPO(),
    READS_ENTROPY := GRPO(kl_coef=0.1, dual_clip=3.0, entropy_coef=0.01),
    GRPO(kl_coef=0.1, kl_estimator="k3_corrected"),
    DIVIDES_BY_A_CONSTANT := DrGRPO(max_completion_length=8, kl_coef=0.1, kl_estimator="k2"),
    PPO(kl_coef=0.1),
    READS_VALUES := PPO(whiten_rewards=True, value_coef=0.5, dual_clip=3.0, entropy_coef=0.01),
    SFT(),
    WEIGHS_ITS_TOKENS := SFT(dft=True),
]
OF_EACH_KIND = (DISCOUNTS, CLIPS, READS_ENTROPY, DIVIDES_BY_A_CONSTANT, READS_VALUES, WEIGHS_ITS_TOKENS)
PROMPTS = {"every row for itself": (3, 6), "a shared prompt": (3, 17)}
TOLERANCE = {"sdpa": 1e-10, "eager": 1e-6}  # the eager softmax of transformers is float32 for every model dtype


def thinned() -> Iterator[Any]:
    """Yield the ways of the forward pass with each algorithm.

    `make test` computes a loss of each kind on shared prompts with sdpa. With eager attention, and where no prompt is
    shared, it computes the one that reads entropies and values: all losses read the outputs of the same forward pass.
    """
    for attention, lengths, algorithm in product(TOLERANCE, PROMPTS, ALGORITHMS):
        usual = (attention, lengths) == ("sdpa", "a shared prompt")
        quick = algorithm in OF_EACH_KIND if usual else algorithm == READS_VALUES
        name = f"{attention}-{lengths}-{name_of(algorithm)}"
        yield pytest.param(attention, lengths, algorithm, id=name, marks=[] if quick else [pytest.mark.slow])


def name_of(algorithm) -> str:
    changed = {k: v for k, v in vars(algorithm).items() if v != getattr(type(algorithm)(), k)}
    return f"{algorithm.key}{changed or ''}"


@pytest.fixture(scope="module", params=TOLERANCE)
def attention(request) -> str:
    return request.param


@pytest.fixture
def tolerance(attention) -> float:
    return TOLERANCE[attention]


@pytest.fixture(scope="module")
def model(attention) -> LlamaForCausalLM:
    return tiny_model(attention)


@pytest.fixture(scope="module", params=PROMPTS)
def experience(request) -> Experience:
    return tiny_experience(PROMPTS[request.param])


def batch_for(algorithm, experience: Experience) -> Batch:
    if isinstance(algorithm, PolicyGradient):
        return algorithm.to_batch(experience)
    return Batch.from_experience(experience)


every_way = pytest.mark.parametrize(
    ("attention", "experience", "algorithm"), list(thinned()), indirect=["attention", "experience"]
)


@every_way
def test_every_split_gives_the_same_gradient_and_loss(model, experience, algorithm, tolerance):
    batch = batch_for(algorithm, experience)
    expected, expected_loss = gradient(model, algorithm, batch, SPLITS["1x8"])
    assert expected.norm() > 1e-3, "a gradient of zero would pass any comparison"
    for name, split in SPLITS.items():
        found, loss = gradient(model, algorithm, batch, split)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
        assert loss == pytest.approx(expected_loss, abs=tolerance)


@every_way
def test_packed_and_padded_give_the_same_gradient(model, experience, algorithm, tolerance):
    batch = batch_for(algorithm, experience)
    packed, packed_loss = gradient(model, algorithm, batch, SPLITS["1x8"])
    padded, padded_loss = gradient(model, algorithm, batch, SPLITS["1x8"], way=padded_forward)
    torch.testing.assert_close(packed, padded, atol=tolerance, rtol=0)
    assert packed_loss == pytest.approx(padded_loss, abs=tolerance)


def test_the_second_prompt_is_shared_where_it_says_so(model, experience):
    """Three of its completions have tokens, so 17 prompt tokens are computed once, if the prompt is that long."""
    assert experience.tokens is not None
    packed = forward_path(model).pack(experience.tokens, experience.completion_mask_BT)
    long = int(experience.tokens.lengths_B[4]) == 17  # the row with the empty completion
    assert packed.num_real_tokens - packed.num_tokens == (2 * 17 if long else 0)


def test_a_wrong_denominator_would_be_noticed(model, experience):
    """This tests the check itself: micro-batches that are normalised by their own totals give a different gradient."""
    algorithm = GRPO()
    batch = batch_for(algorithm, experience)
    right, _ = gradient(model, algorithm, batch, SPLITS["1x8"])
    model.zero_grad()
    for rows in SPLITS["uneven"]:
        micro = batch.rows(rows)
        loss, _ = algorithm.loss(forward(model, micro), micro, count_totals(micro))
        loss.backward()
    wrong = gradients_of(model)
    assert (wrong - right).norm() > 0.1 * right.norm()
