"""The small run that a probe measures instead of the real one: its model, rows and config."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from posttrain.config import RunConfig, check, load_config
from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.workload import model_architecture
from posttrain.tasks.tiny import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from posttrain.train.rounding import loses_typical


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the small step: enough work for the device, but only seconds for the user."""

    parameters: int
    """Maximum number of parameters."""
    vocabulary: int
    prompt: int
    """Length of a prompt, in tokens."""
    answer: int
    prompts: int
    """Prompts of a step."""
    group: int
    microbatch: int
    """Maximum number of tokens per micro-batch."""

    @property
    def rows(self) -> int:
        """Number of prompts in the data, some of them held out. Each step uses different ones."""
        return 8 * self.prompts


SIZES = {
    "cpu": Size(
        parameters=30_000_000, vocabulary=4096, prompt=64, answer=64, prompts=4, group=4, microbatch=1024
    ),
    "cuda": Size(
        parameters=1_000_000_000, vocabulary=32_000, prompt=256, answer=256, prompts=16, group=8, microbatch=16_384
    ),
}  # fmt: skip


def _microbatch(config: RunConfig, like: Size) -> int:
    asked = config.train.tokens_per_microbatch
    return like.microbatch if asked == "auto" else min(asked, like.microbatch)


def small_config(config: RunConfig, folder: Path, device: torch.device) -> RunConfig:
    """Return a GRPO config with the adapters, checkpointing and precision of `config`, on random characters."""
    like = SIZES[device.type]
    build_model(model_architecture(config.model.path), folder / "model", device)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows(like)))
    (folder / "reward.py").write_text("def length(prompt, completion, **row):\n    return float(len(completion) % 7)\n")
    chunk = config.train.logprob_chunk_tokens
    exact = config.model.precision == "auto" and device.type == "cpu" and loses_typical(config)
    precision = "float32" if exact else config.model.precision
    made = load_config(
        {
            "model": {
                "path": str(folder / "model"),
                "device": device.type,
                "precision": precision,
                "attention": config.model.attention,
            },
            "algorithm": "grpo",
            "data": {"train": str(folder / "rows.jsonl"), "chat": False},
            "rewards": [{"function": f"{folder / 'reward.py'}:length"}],
            "sampling": {"group_size": like.group, "max_completion_length": like.answer},
            "train": {
                "steps": 2,
                "learning_rate": 1e-3,  # otherwise `auto` would be float32, because two steps are short (rounding.py)
                "prompts_per_step": like.prompts,
                "tokens_per_microbatch": _microbatch(config, like),
                "logprob_chunk_tokens": chunk,
                "gradient_checkpointing": config.train.gradient_checkpointing,
            },
            "evaluation": {"prompts": 1, "samples": 0},
            "report": False,
            **({"lora": {"rank": config.lora.rank}} if config.lora is not None else {}),
        }
    ).config
    check(made)
    return made


def _rows(like: Size) -> Iterator[dict[str, str]]:
    draw = random.Random(0)
    for _ in range(like.rows):  # the tokenizer puts a first token before each
        yield {"prompt": "".join(draw.choice(string.ascii_lowercase) for _ in range(like.prompt - 1))}


def build_model(like: Architecture, folder: Path, device: torch.device) -> None:
    """Save a Llama with the same widths and random weights, and with as many layers as the size allows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer, most = build_tokenizer(), SIZES[device.type]
    width, layers, heads, kv_heads, mlp = like.hidden, like.layers, like.heads, like.kv_heads, _mlp_width(like)
    vocabulary = max(len(tokenizer), min(like.vocabulary, most.vocabulary))
    layer = 2 * width * like.key_width * (heads + kv_heads) + 3 * width * mlp
    while vocabulary * width + layers * layer > most.parameters and (layers > 1 or heads % 2 == 0):
        if layers > 1:
            layers = layers // 2
            continue
        width, heads, kv_heads, mlp = width // 2, heads // 2, max(1, kv_heads // 2), mlp // 2
        layer = 2 * width * like.key_width * (heads + kv_heads) + 3 * width * mlp
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=like.key_width,
        vocab_size=vocabulary,
        tie_word_embeddings=like.tied,
        max_position_embeddings=most.prompt + most.answer,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.model_max_length = most.prompt + most.answer
    tokenizer.save_pretrained(folder)


def _mlp_width(like: Architecture) -> int:
    """Return the width of the MLP. For a mixture, the width that one token passes."""
    _, block = like.blocks[-1]
    mixture = block.mixture
    return like.mlp_width if mixture is None else mixture.per_token * mixture.width
