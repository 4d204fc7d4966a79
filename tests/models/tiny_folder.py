"""A tiny Hugging Face model folder with a tokenizer, as a user would have it."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.models.tiny_architectures import VOCAB, tiny_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GenerationConfig, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}{{ m.role + ' ' + m.content + ' ' }}{% endfor %}"


def tiny_tokenizer(size: int = VOCAB, **special_tokens: str | None) -> PreTrainedTokenizerFast:
    """Words w6, w7, …, after six special tokens whose roles the caller chooses."""
    words = ["<pad>", "<s>", "</s>", "<end>", "<unk>", "<other>", *(f"w{i}" for i in range(6, size))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    chosen = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"} | special_tokens
    given = {name: token for name, token in chosen.items() if token is not None}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)
    fast.chat_template = TEMPLATE
    return fast


def tiny_folder(
    folder: Path, architecture: str = "llama, grouped heads", *, tokenizer: PreTrainedTokenizerFast | None = None
) -> Path:
    """Model, tokenizer and a generation config with two EOS ids."""
    model = tiny_model(architecture, dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=[2, 3], pad_token_id=0, bos_token_id=1)
    model.save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder
