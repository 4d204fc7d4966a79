"""A model that takes a second to build, for tests of the machinery: random weights, and letters as tokens."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<bos>", "<eos>"]
CHARACTERS = string.ascii_lowercase + string.digits + " "


def tiny_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character, and three separate ids for pad, bos and eos."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<pad>"
    )


def tiny_model(folder: Path, *, seed: int = 0, characters: str = CHARACTERS, **changes: object) -> Path:
    """A random Llama of 20 thousand parameters as a Hugging Face folder."""
    tokenizer = tiny_tokenizer(characters)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **changes,
    }
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    tokenizer.save_pretrained(folder)
    return folder


def write_prompts(path: Path, *, count: int, seed: int = 0) -> Path:
    """Prompts of two to five letters, with the same letters sorted as the answer."""
    dice = random.Random(seed)
    prompts = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 5))) for _ in range(count)]
    rows = [{"prompt": prompt, "answer": "".join(sorted(prompt))} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
