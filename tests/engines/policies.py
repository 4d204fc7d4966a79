"""Small models, prompts and settings for the tests of sampling and publishing."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from posttrain.models.forward import token_logprobs
from posttrain.types import Prompt, Tokens

VOCAB = 64
EOS = 2
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_GPT: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": EOS}

CONFIGS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**SIZES),
    "qwen2, tied": lambda: hf.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "gpt2, learned positions": lambda: hf.GPT2Config(**_GPT, n_embd=32, n_layer=2, n_head=4, n_positions=96),
    "gpt-neox": lambda: hf.GPTNeoXConfig(
        **_GPT,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=96,
    ),
    "qwen3-moe, experts": lambda: hf.Qwen3MoeConfig(
        **SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "olmoe, experts": lambda: hf.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2),
    "gemma2, soft caps and sliding window": lambda: hf.Gemma2Config(**SIZES, head_dim=8, sliding_window=6),
    "mistral, sliding window": lambda: hf.MistralConfig(**SIZES, sliding_window=5),
    "bloom, slopes for positions": lambda: hf.BloomConfig(**_GPT, hidden_size=32, n_layer=2, n_head=4),
    "mamba, state space": lambda: hf.MambaConfig(**_GPT, hidden_size=32, num_hidden_layers=2, pad_token_id=0),
    "lfm2, convolutions": lambda: hf.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The attributes of the `sampling` section that a sampler reads."""

    max_completion_length: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: Sequence[str] = ()
    max_batch_rows: int = 64


def tiny_model(
    name: str = "llama", *, attention: str | None = None, seed: int = 0, head_dim: int | None = None
) -> PreTrainedModel:
    """A model with the same random weights every time, large enough that probabilities are far from equal."""
    config = CONFIGS[name]()
    if head_dim is not None:
        config.head_dim = head_dim
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.25)
    return model.eval()


def lora_model(name: str = "llama", *, head_dim: int | None = None, **settings) -> nn.Module:
    """A policy whose adapter has an effect: its second factor is not the zeros of a new adapter."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | settings
    model = get_peft_model(tiny_model(name, head_dim=head_dim), LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, and some of several characters: `ab`, `END`. Ids 0 to 2 are special."""
    words = ["<pad>", "<bos>", "<eos>", "ab", "END", *string.ascii_letters[:49], *" .é0123456"]
    assert len(words) == VOCAB
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<pad>"
    )


def random_prompts(lengths: Sequence[int] = (3, 11, 7, 1, 5), seed: int = 0) -> list[Prompt]:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    return [Prompt(index=10 + i, ids=tuple(ids), text="") for i, ids in enumerate(rows)]


def real_model(name: str) -> tuple[PreTrainedModel, hf.PreTrainedTokenizerBase]:
    """A small trained model of the shared data folder; the test is skipped if the model is missing."""
    folder = Path(__file__).parents[3] / "shared" / "data" / "models" / name
    if not folder.exists():
        pytest.skip(f"needs ../shared/data/models/{name}, which is not here")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def hf_greedy(model: PreTrainedModel, prompt: Prompt, length: int, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """The completion that transformers generates for the prompt alone."""
    ids = torch.tensor([prompt.ids])
    found = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=list(eos_ids),
        pad_token_id=0,
    )
    return tuple(found[0, len(prompt.ids) :].tolist())


def trainer_logprobs(model: nn.Module) -> Callable[..., list[list[float]]]:
    """The trainer's log-probabilities for a delivery proof, from its packed forward pass."""

    def score(prompt_ids, completion_ids, *, temperature: float) -> list[list[float]]:
        rows = [[*p, *c] for p, c in zip(prompt_ids, completion_ids, strict=True)]
        width = max(map(len, rows))
        ids_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        lengths_B = torch.tensor([len(row) for row in rows])
        starts_B = torch.tensor([len(p) for p in prompt_ids])
        columns_T = torch.arange(width)
        mask_BT = (columns_T >= starts_B[:, None]) & (columns_T < lengths_B[:, None])
        tokens = Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B)
        logprobs_BT = token_logprobs(model, tokens, mask_BT, temperature=temperature).logprobs_BT
        return [row[mask].tolist() for row, mask in zip(logprobs_BT, mask_BT, strict=True)]

    return score
