"""The work of a GPU per decoded token of all rows, counted without a GPU.

Run `python -m tests.engines.count_decoding`; docs/gpu-decoding.md has its table. Waits, launches and copies depend on
the number of layers and not on their width. The script counts narrow models of one and of two layers, and adds the
difference once for every further layer. Casts are counted in shares of all weights; keys and values in shares of the
columns that the rows have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tests.engines.policies import Settings, random_prompts, tiny_tokenizer
from tests.engines.second_device import Device, moved, second_device
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from posttrain.engines import LocalSampler

ROWS, TOKENS = 8, 12
PROMPTS = (4, 20, 9, 30)
EOS_IDS = (2, 5, 9)
NARROW: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}  # fmt: skip


def full(layers: int) -> nn.Module:
    """A model with the layout of Qwen2.5 0.5B."""
    return Qwen2ForCausalLM(Qwen2Config(**NARROW, num_hidden_layers=layers, tie_word_embeddings=True))


def lora(layers: int, *, half: bool = False) -> nn.Module:
    """The layout of Qwen2.5 7B, with adapters on all linear layers; `half` stores frozen weights in bfloat16."""
    model = Qwen2ForCausalLM(Qwen2Config(**NARROW, num_hidden_layers=layers, tie_word_embeddings=False))
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    for parameter in adapted.parameters():
        if half and not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    return adapted


MODELS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "0.5B": (full, 24),
    "7B, LoRA": (lora, 28),
    "7B, LoRA on bfloat16": (partial(lora, half=True), 28),
}


def count(model: Any) -> dict[str, float]:
    """The counts per pass, which gives every active row one token."""
    with second_device() as device:
        policy = moved(model)
        sampler = LocalSampler(policy, tiny_tokenizer(), EOS_IDS, shared=True, dtype=torch.bfloat16)
        assert not sampler.note
        device.forget()
        device.weights = {x.untyped_storage().data_ptr() for x in policy.parameters()}
        settings = Settings(max_batch_rows=ROWS, max_completion_length=TOKENS)
        groups = sampler.generate(random_prompts(PROMPTS), settings, group_size=2, seed=0)
    passes = max(len(one.ids) for group in groups for one in group)
    columns = sum(p + t for p, group in zip(PROMPTS, groups, strict=True) for one in group for t in range(len(one.ids)))
    layers, kv_bytes = model.config.num_hidden_layers, 2 * 2 * 2 * 8
    weights = sum(x.numel() for x in model.parameters())
    return {
        "waits until the queue is empty": len(device.waits) / passes,
        "waits for the ids of the pass before": device.events / passes,
        "launches": sum(device.launches.values()) / passes,
        "of these casts": sum(n for name, n in device.launches.items() if name.startswith("cast")) / passes,
        "copies to the device": device.copies["to the device"] / passes,
        "copies to the host": device.copies["to the host"] / passes,
        "casts to bfloat16, in shares of all weights": device.bytes["cast of a weight to bfloat16"]
        / 6
        / weights
        / passes,
        "keys and values read, in shares of the rows' own": _read(device) / (columns * kv_bytes * layers),
    }


def _read(device: Device) -> int:
    return device.bytes["scaled_dot_product_attention"] + device.bytes["varlen_attn"]


def extrapolated(make: Callable[[int], nn.Module], layers: int) -> dict[str, float]:
    """The counts for `layers` layers; the shares are those of two layers."""
    torch.manual_seed(0)
    one, two = count(make(1)), count(make(2))
    return {what: two[what] if "shares" in what else two[what] + (layers - 2) * (two[what] - one[what]) for what in one}


def main() -> None:
    counts = {name: extrapolated(*model) for name, model in MODELS.items()}
    print("| per token of all rows |" + "".join(f" {name} |" for name in counts))
    print("|---|" + "---:|" * len(counts))
    for what in next(iter(counts.values())):
        print(f"| {what} |" + "".join(f" {found[what]:.2f} |" for found in counts.values()))


if __name__ == "__main__":
    main()
