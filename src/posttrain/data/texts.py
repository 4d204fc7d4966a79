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
    turns = takewhile(lambda turn: turn.get("role") != "assistant", values.get("messages") or ())
    return _words(values.get("prompt", values.get("text")), list(turns))


def asked_words(values: Mapping[str, Any]) -> str | None:
    """As `prompt_words`, but for a conversation the turns before its last answer: many may begin with "Hi".

    >>> turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user"}]
    >>> asked_words({"messages": turns}) == asked_words({"prompt": turns}) == repr(turns)
    True
    >>> asked_words({"messages": turns[:2]}) == repr(turns[:1])
    True
    """
    turns = list(values.get("messages") or ())
    while turns and turns[-1].get("role") == "assistant":
        turns.pop()
    return _words(values.get("prompt", values.get("text")), turns)


def _words(prompt: Any, turns: list[Any]) -> str | None:
    prompt = turns if prompt is None else prompt
    if not prompt:
        return None
    return prompt if isinstance(prompt, str) else repr(prompt)
