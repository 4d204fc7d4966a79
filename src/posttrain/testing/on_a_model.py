"""Tests an algorithm on a tiny language model: the gradient must not depend on packing, padding or splitting.

Packed rows share the prompt of a group. Padded rows run through the unchanged transformers model, with full logits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posttrain.algorithms import Algorithm
from posttrain.data.collate import collate
from posttrain.models.forward import token_logprobs
from posttrain.testing.invariances import require
from posttrain.types import Batch, Experience, Outputs, count_totals

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

ROWS, VOCABULARY = 8, 23
LENGTHS = (5, 1, 3, 8, 0, 4, 2, 7)
"""Lengths of the completions in tokens; one is empty."""
PROMPTS = (3, 17)
"""Lengths of the two prompts, in tokens. Rows share the long prompt, and each row repeats the short one."""
SPLITS: dict[str, list[list[int]]] = {
    "1x8": [list(range(ROWS))],
    "8x1": [[row] for row in range(ROWS)],
    "uneven": [[0, 1, 2, 3, 4], [5], [6, 7]],
    "permuted": [[6, 1, 7], [0, 3], [5, 2, 4]],
}


def tiny_model(attention: str = "sdpa") -> LlamaForCausalLM:
    """Return a model of two layers in float64. `value_head` is a critic head on the same trunk."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            attn_implementation=attention,  # pyright: ignore[reportCallIssue]
        )
        model = LlamaForCausalLM(config)
        model.value_head = torch.nn.Linear(16, 1)
    return exact_norms(model.double())


def exact_norms(model: Any) -> Any:
    """Replace the norms of the model by norms in its own precision. Norms of transformers always compute in float32.

    With norms in float32, gradients summed over rows before and after a norm would differ by 1e-7, and not by 1e-16.
    """
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if type(norm).__name__.endswith("RMSNorm") and not type(norm).__name__.startswith("Gemma"):
                twin = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=norm.weight.dtype)
                twin.weight = norm.weight
                setattr(parent, name, twin)
    return model


def tiny_experience(prompts: Sequence[int] = PROMPTS) -> Experience:
    """Return two prompts with four completions each, of different lengths. One is empty, and one has no score."""
    dice = random.Random(0)
    asked = [[dice.randrange(3, VOCABULARY) for _ in range(length)] for length in prompts]
    rows = [(asked[row // 4], [dice.randrange(3, VOCABULARY) for _ in range(n)]) for row, n in enumerate(LENGTHS)]
    tokens, mask_BT = collate(rows, pad_id=0)
    noise = torch.Generator().manual_seed(1)
    spread = {name: torch.randn(mask_BT.shape, generator=noise, dtype=torch.float64) * 0.3 for name in ("old", "ref")}
    rewards_PG = torch.tensor([[1.0, 0.0, 0.5, float("nan")], [0.2, 0.9, 0.1, 0.4]], dtype=torch.float64)
    return Experience.from_rewards(
        rewards_PG,
        rewards_KPG=torch.stack([rewards_PG, 1 - rewards_PG**2]),
        greedy_rewards_P=torch.tensor([0.4, 0.3], dtype=torch.float64),
        completion_mask_BT=mask_BT,
        old_logprobs_BT=spread["old"] - 3.1,
        ref_logprobs_BT=spread["ref"] - 3.1,
        values_BT=spread["old"] + 0.2,
        tokens=tokens,
    )


def forward(model: Any, batch: Batch) -> Outputs:
    """Return the outputs as a run computes them: packed rows, shared prompts, logits in chunks."""
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


def padded_forward(model: Any, batch: Batch) -> Outputs:
    """Return the outputs without packing: right-padded rows, an attention mask, full logits."""
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


def gradient(
    model: Any,
    algorithm: Algorithm,
    batch: Batch,
    split: Sequence[Sequence[int]],
    way: Callable[[Any, Batch], Outputs] = forward,
) -> tuple[Tensor, float]:
    """Return the gradient of all parameters in one vector and the loss, both summed over micro-batches."""
    model.zero_grad()
    totals, total_loss = count_totals(batch), 0.0
    for rows in split:
        micro = batch.rows(rows)
        loss, _ = algorithm.loss(way(model, micro), micro, totals)
        if loss.requires_grad:
            loss.backward()
        total_loss += loss.item()
    return gradients_of(model), total_loss


def gradients_of(model: Any) -> Tensor:
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.flatten() for part in parts])


def step_on_a_model(algorithm: Algorithm, model: Any) -> Batch:
    """Return a prepared step of sampled or given rows, with tokens from the vocabulary of the model."""
    experience = tiny_experience()
    if algorithm.data_kind == "prompts":
        batch = algorithm.to_batch(experience, algorithm.initial_state())
    elif algorithm.data_kind == "examples":
        batch = Batch.from_experience(experience)
    else:
        mask_BT, ref_BT, tokens = experience.completion_mask_BT, experience.ref_logprobs_BT, experience.tokens
        if algorithm.data_kind == "pairs":
            batch = Batch.from_pairs(mask_BT, ref_BT, tokens=tokens)
        else:
            labels_B = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1])
            batch = Batch.from_labels(
                mask_BT, labels_B, ref_BT, torch.linspace(-0.2, 0.5, ROWS).double(), tokens=tokens
            )
    if algorithm.needs & {"current", "current_entropy"}:
        now = forward(model, batch).each(Tensor.detach)
        batch = replace(batch, current_logprobs_BT=now.logprobs_BT, current_entropy_BT=now.entropy_BT)
    return algorithm.prepare(batch)


def packing_and_micro_batches_do_not_matter(algorithm: Algorithm, tolerance: float = 1e-10) -> None:
    """Require the same gradient of every parameter for packed, padded, whole and micro-batched rows."""
    model = tiny_model()
    batch = step_on_a_model(algorithm, model)
    whole = [list(range(batch.num_rows))]
    expected, expected_loss = gradient(model, algorithm, batch, whole)
    require(bool(expected.norm() > 1e-6), "the gradient is 0, so the comparison would prove nothing")
    units = batch.units
    first = [row for unit in units[:-1] for row in unit]
    others = {
        "padded": (whole, padded_forward),
        "one unit at a time": (units, forward),
        "unevenly split": ([first, units[-1]], forward),
        "backwards": ([list(reversed(unit)) for unit in reversed(units)], forward),
    }
    for name, (split, way) in others.items():
        found, loss = gradient(model, algorithm, batch, split, way)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0, msg=lambda said, n=name: f"{n}: {said}")
        require(abs(loss - expected_loss) <= tolerance, f"{name}: the loss is {loss}, not {expected_loss}")
