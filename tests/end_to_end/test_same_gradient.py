"""Promise 1: the gradient of the parameters does not depend on how the batch is split, packed or ordered."""

from __future__ import annotations

import random

import pytest
import torch
from tests.models.tiny_architectures import exact_norms
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.algorithms import GRPO, PPO, REINFORCE, RLOO, SFT, DrGRPO, PolicyGradient
from posttrain.data.collate import collate
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.types import Batch, Experience, Outputs, count_totals

ROWS = 8
ALGORITHMS = [
    REINFORCE(baseline="none"),
    REINFORCE(baseline="batch_mean", clip_low=0.2, clip_high=0.2, gamma=0.9, kl_coef=0.1),
    RLOO(),
    RLOO(clip_low=0.2, clip_high=0.2, kl_coef=0.05),
    GRPO(),
    GRPO(kl_coef=0.1, dual_clip=3.0, entropy_coef=0.01),
    GRPO(kl_coef=0.1, kl_estimator="k3_corrected"),
    DrGRPO(max_completion_length=8, kl_coef=0.1, kl_estimator="k2"),
    PPO(kl_coef=0.1),
    PPO(whiten_rewards=True, value_coef=0.5, dual_clip=3.0, entropy_coef=0.01),
    SFT(),
    SFT(dft=True),
]
SPLITS = {
    "1x8": [list(range(ROWS))],
    "8x1": [[row] for row in range(ROWS)],
    "uneven": [[0, 1, 2, 3, 4], [5], [6, 7]],
    "permuted": [[6, 1, 7], [0, 3], [5, 2, 4]],
}
TOLERANCE = {"sdpa": 1e-10, "eager": 1e-6}  # the eager softmax of transformers is float32 whatever the model is


def name_of(algorithm) -> str:
    changed = {k: v for k, v in vars(algorithm).items() if v != getattr(type(algorithm)(), k)}
    return f"{algorithm.key}{changed or ''}"


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def attention(request) -> str:
    return request.param


@pytest.fixture
def tolerance(attention) -> float:
    return TOLERANCE[attention]


@pytest.fixture(scope="module")
def model(attention) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attn_implementation=attention,
    )
    model = LlamaForCausalLM(config)
    model.value_head = torch.nn.Linear(16, 1)  # a critic on the same trunk
    return exact_norms(model.double())


@pytest.fixture(scope="module", params=[(3, 6), (3, 17)], ids=["every row for itself", "a shared prompt"])
def experience(request) -> Experience:
    """Two prompts, four completions each, of different lengths; one is empty and one could not be scored."""
    dice = random.Random(0)
    prompts = [[dice.randrange(3, 23) for _ in range(length)] for length in request.param]
    lengths = [5, 1, 3, 8, 0, 4, 2, 7]
    rows = [(prompts[row // 4], [dice.randrange(3, 23) for _ in range(n)]) for row, n in enumerate(lengths)]
    tokens, mask_BT = collate(rows, pad_id=0)
    noise = torch.Generator().manual_seed(1)
    spread = {name: torch.randn(mask_BT.shape, generator=noise, dtype=torch.float64) * 0.3 for name in ("old", "ref")}
    return Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, float("nan")], [0.2, 0.9, 0.1, 0.4]], dtype=torch.float64),
        completion_mask_BT=mask_BT,
        old_logprobs_BT=spread["old"] - 3.1,
        ref_logprobs_BT=spread["ref"] - 3.1,
        values_BT=spread["old"] + 0.2,
        tokens=tokens,
    )


def batch_for(algorithm, experience: Experience) -> Batch:
    if isinstance(algorithm, PolicyGradient):
        return algorithm.to_batch(experience)
    return Batch.from_experience(experience)


def forward(model: LlamaForCausalLM, batch: Batch) -> Outputs:
    assert batch.tokens is not None
    return token_logprobs(
        model,
        batch.tokens,
        batch.completion_mask_BT,
        temperature=0.7,
        with_entropy=True,
        value_head=model.value_head,
        chunk_tokens=5,
    )


def padded_forward(model: LlamaForCausalLM, batch: Batch) -> Outputs:
    """The plain way: right-padded rows, an attention mask, whole logits."""
    assert batch.tokens is not None
    ids_BT, mask_BT = batch.tokens.input_ids_BT, batch.completion_mask_BT
    attention_BT = torch.arange(ids_BT.shape[1])[None, :] < batch.tokens.lengths_B[:, None]
    states = model(input_ids=ids_BT, attention_mask=attention_BT.long(), output_hidden_states=True)
    logits_BTV = states.logits / 0.7
    values_BT = model.value_head(states.hidden_states[-1])[:, :-1, 0]
    log_p_BTV = logits_BTV[:, :-1].log_softmax(dim=-1)
    chosen_BT = log_p_BTV.gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    entropy_BT = -(log_p_BTV.exp() * log_p_BTV).sum(dim=-1)
    shift = torch.nn.functional.pad
    return Outputs(
        logprobs_BT=torch.where(mask_BT, shift(chosen_BT, (1, 0)), 0.0),
        entropy_BT=torch.where(mask_BT, shift(entropy_BT, (1, 0)), 0.0),
        values_BT=torch.where(mask_BT, shift(values_BT, (1, 0)), 0.0),
    )


def gradient(model, algorithm, batch: Batch, split: list[list[int]], way=forward) -> tuple[Tensor, float]:
    """The gradient of all parameters in one vector, and the loss, summed over micro-batches."""
    model.zero_grad()
    totals, total_loss = count_totals(batch), 0.0
    for rows in split:
        micro = batch.rows(rows)
        loss, _ = algorithm.loss(way(model, micro), micro, totals)
        if loss.requires_grad:
            loss.backward()
        total_loss += loss.item()
    return gradients_of(model), total_loss


def gradients_of(model) -> Tensor:
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name_of)
def test_every_split_gives_the_same_gradient_and_loss(model, experience, algorithm, tolerance):
    batch = batch_for(algorithm, experience)
    expected, expected_loss = gradient(model, algorithm, batch, SPLITS["1x8"])
    assert expected.norm() > 1e-3, "a gradient of zero would agree with anything"
    for name, split in SPLITS.items():
        found, loss = gradient(model, algorithm, batch, split)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
        assert loss == pytest.approx(expected_loss, abs=tolerance)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name_of)
def test_packed_and_padded_give_the_same_gradient(model, experience, algorithm, tolerance):
    batch = batch_for(algorithm, experience)
    packed, packed_loss = gradient(model, algorithm, batch, SPLITS["1x8"])
    padded, padded_loss = gradient(model, algorithm, batch, SPLITS["1x8"], way=padded_forward)
    torch.testing.assert_close(packed, padded, atol=tolerance, rtol=0)
    assert packed_loss == pytest.approx(padded_loss, abs=tolerance)


def test_the_second_prompt_is_shared_where_it_says_so(model, experience):
    """Three of its completions have tokens: 17 of the prompt are computed once, where the prompt is long enough."""
    assert experience.tokens is not None
    packed = forward_path(model).pack(experience.tokens, experience.completion_mask_BT)
    long = int(experience.tokens.lengths_B[4]) == 17  # the row with the empty completion
    assert packed.num_real_tokens - packed.num_tokens == (2 * 17 if long else 0)


def test_a_wrong_denominator_would_be_noticed(model, experience):
    """The check itself: normalising each micro-batch by its own totals gives another gradient."""
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
