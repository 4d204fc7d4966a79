"""Sampling and the training pass, side by side with plain transformers on the same weights and the same tokens.

    python benchmarks/against_transformers.py            writes benchmarks/results/against_transformers.json

Both sides take turns in one process, so that a slow moment of the machine hits both; medians and ratios are reported.
Completion lengths are forced, so that both sides sample the same number of tokens. The training pass is checked to
give the same loss before it is timed.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.config import SamplingConfig
from posttrain.data.collate import collate
from posttrain.models.forward import token_logprobs
from posttrain.rollout.local import LocalSampler
from posttrain.tasks.tiny import build_tokenizer
from posttrain.types import Prompt, Tokens

PROMPTS, GROUP_SIZE, NEW_TOKENS, ROUNDS = 8, 8, 64, 5
RESULT = Path(__file__).parent / "results" / "against_transformers.json"


def make_model() -> LlamaForCausalLM:
    """Random weights, 14 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def make_rows() -> list[tuple[list[int], list[int]]]:
    """64 rows with prompts of 16 to 64 and completions of 8 to 96 tokens, heavy-tailed as answers are."""
    dice = random.Random(0)
    rows = []
    for _ in range(PROMPTS):
        prompt = [dice.randrange(3, 8000) for _ in range(dice.randint(16, 64))]
        for _ in range(GROUP_SIZE):
            length = min(96, 8 + int(dice.expovariate(1 / 24)))
            rows.append((prompt, [dice.randrange(3, 8000) for _ in range(length)]))
    return rows


def sample_with_posttrain(model: LlamaForCausalLM, prompts: list[list[int]]) -> int:
    sampler = LocalSampler(model, build_tokenizer(), eos_ids={7999}, shared=True)
    requests = [Prompt(index=n, ids=tuple(ids), text="") for n, ids in enumerate(prompts)]
    settings = SamplingConfig(max_completion_length=NEW_TOKENS, max_batch_rows=PROMPTS * GROUP_SIZE)
    groups = sampler.generate(requests, settings, group_size=GROUP_SIZE, seed=0)
    return sum(len(completion.ids) for group in groups for completion in group)


@torch.no_grad()
def sample_with_transformers(model: LlamaForCausalLM, prompts: list[list[int]]) -> int:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts for _ in range(GROUP_SIZE)])
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    out = model.generate(input_ids=ids, attention_mask=(ids != 0).long(), **settings)  # pyright: ignore
    return (out.shape[1] - longest) * out.shape[0]


def packed_pass(model: LlamaForCausalLM, tokens: Tokens, mask_BT: torch.Tensor) -> float:
    model.zero_grad()
    loss = -token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT.sum() / mask_BT.sum()
    loss.backward()
    return loss.item()


def padded_pass(model: LlamaForCausalLM, tokens: Tokens, mask_BT: torch.Tensor) -> float:
    """Whole logits of right-padded rows."""
    model.zero_grad()
    ids_BT = tokens.input_ids_BT
    attention_BT = (torch.arange(ids_BT.shape[1])[None, :] < tokens.lengths_B[:, None]).long()
    log_p_BTV = model(input_ids=ids_BT, attention_mask=attention_BT).logits[:, :-1].log_softmax(dim=-1)
    chosen_BT = log_p_BTV.gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    loss = -chosen_BT[mask_BT[:, 1:]].sum() / mask_BT.sum()
    loss.backward()
    return loss.item()


def in_turns(*functions: Callable[[], float]) -> list[list[float]]:
    """Seconds of each function in each round; one round before does not count."""
    seconds: list[list[float]] = [[] for _ in functions]
    for round_number in range(ROUNDS + 1):
        for place, function in enumerate(functions):
            started = time.perf_counter()
            function()
            if round_number:
                seconds[place].append(time.perf_counter() - started)
    return seconds


def compare(ours: list[float], theirs: list[float], amount: int) -> dict[str, float]:
    return {
        "posttrain_tokens_per_s": round(amount / statistics.median(ours), 1),
        "transformers_tokens_per_s": round(amount / statistics.median(theirs), 1),
        "ratio_of_medians": round(statistics.median(theirs) / statistics.median(ours), 2),
        "lowest_ratio": round(min(t / o for o, t in zip(ours, theirs, strict=True)), 2),
        "highest_ratio": round(max(t / o for o, t in zip(ours, theirs, strict=True)), 2),
    }


def main() -> None:
    model, rows = make_model(), make_rows()
    prompts = [rows[n][0] for n in range(0, len(rows), GROUP_SIZE)]
    sampled = sample_with_transformers(model, prompts)
    sampling = in_turns(lambda: sample_with_posttrain(model, prompts), lambda: sample_with_transformers(model, prompts))
    tokens, mask_BT = collate(rows, pad_id=0)
    losses = padded_pass(model, tokens, mask_BT), packed_pass(model, tokens, mask_BT)
    assert abs(losses[0] - losses[1]) < 1e-4, f"the two sides compute different losses: {losses}"
    passes = in_turns(lambda: packed_pass(model, tokens, mask_BT), lambda: padded_pass(model, tokens, mask_BT))
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch threads {torch.get_num_threads()}",
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "workload": f"{PROMPTS} prompts x {GROUP_SIZE} completions, 14M parameters, float32, {ROUNDS} rounds in turns",
        "sampling": compare(*sampling, amount=sampled),
        "training_pass": {
            **compare(*passes, amount=int(tokens.lengths_B.sum())),
            "real_tokens": int(tokens.lengths_B.sum()),
            "padded_tokens": tokens.input_ids_BT.numel(),
        },
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
