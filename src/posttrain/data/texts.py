"""Texts of rows as numbers of eight bytes, so that equal texts are found without keeping them in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def key_of(words: str) -> int:
    """A hash of the text, below 2^64."""
    digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def asked_words(values: Mapping[str, Any]) -> str | None:
    """The prompt in the values that a form has read: for a conversation, the turns up to the last one of the user, as
    many begin with "Hi", and calls of tools differ between answers; for a text without a prompt, the whole text. None
    if it is empty.

    >>> asked_words({"prompt": "2+2", "chosen": "4", "rejected": "5"}), asked_words({"text": "Once"})
    ('2+2', 'Once')
    >>> turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user"}]
    >>> asked_words({"messages": turns}) == asked_words({"prompt": turns}) == repr(turns)
    True
    >>> asked_words({"messages": [*turns, {"role": "assistant", "tool_calls": []}, {"role": "tool"}]}) == repr(turns)
    True
    """
    prompt = values.get("prompt", values.get("text"))
    prompt = values.get("messages") if prompt is None else prompt
    if not prompt or isinstance(prompt, str):
        return prompt or None
    asked = [place for place, turn in enumerate(prompt) if isinstance(turn, Mapping) and turn.get("role") == "user"]
    return repr(list(prompt[: asked[-1] + 1] if asked else prompt))
