"""A prompt as bytes that change with anything that a sampler or a reward reads of it."""

from __future__ import annotations

import json
from typing import Any

from posttrain.types import Prompt


def prompt_bytes(prompt: Prompt) -> bytes:
    """Return the prompt's tokens and the other columns that rewards read, the same bytes in every process."""
    return json.dumps([prompt.ids, prompt.plain, prompt.columns], sort_keys=True, default=_in_words).encode()


def _in_words(value: Any) -> Any:
    """A form for values that JSON cannot hold, the same in every process: arrays as lists, other objects as text.

    An object without a text form of its own is named by its type.
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return type(value).__name__ if type(value).__str__ is object.__str__ else str(value)
