"""Texts of rows as numbers of eight bytes, so that equal texts are found without keeping them in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any


def key_of(words: str) -> int:
    """A hash of the text, below 2^64."""
    digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def prompt_words(values: Mapping[str, Any]) -> str | None:
    """The prompt in the values that a form has read: for a conversation, the turns before the first answer; for a text
    without a prompt, the whole text. None if it is empty.

    >>> prompt_words({"prompt": "2+2", "chosen": "4", "rejected": "5"}), prompt_words({"text": "Once"})
    ('2+2', 'Once')
    >>> prompt_words({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})
    "[{'role': 'user', 'content': 'Hi'}]"
    """
    prompt = values.get("prompt", values.get("text"))
    if prompt is None and values.get("messages"):
        prompt = list(takewhile(lambda turn: turn.get("role") != "assistant", values["messages"]))
    if not prompt:
        return None
    return prompt if isinstance(prompt, str) else repr(prompt)
