"""A small tokenizer with and without a chat template, and files."""

from __future__ import annotations

import gzip
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from posttrain.data.prompts import Renderer
from posttrain.tasks.tiny import build_tokenizer

APPENDING = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
"""A template of the usual kind: u:hello<eos>a:hi<eos>, with BOS at the start."""


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer in which every printable character is a token; it puts BOS before plain text."""
    return build_tokenizer(string.printable)


@pytest.fixture
def chat_tokenizer(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.chat_template = APPENDING
    return tokenizer


@pytest.fixture
def renderer(tokenizer: PreTrainedTokenizerFast) -> Renderer:
    return Renderer(tokenizer=tokenizer, chat=False)


@pytest.fixture
def chat_renderer(chat_tokenizer: PreTrainedTokenizerFast) -> Renderer:
    return Renderer(tokenizer=chat_tokenizer, chat=True)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file and return its path; .gz names are compressed."""

    def to_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return to_file
