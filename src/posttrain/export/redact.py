"""Removes private data from a run's settings, so that they can be published: paths become names, secrets go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from posttrain.config.text import REDACTED, redact

REMOVED = "(removed)"
_SECRET = re.compile(
    r"(^|_)(api|(api_?)?keys?|secrets?|passwords?|passwd|credentials?|auth|authorization|bearer|cookie|tokens?)$",
    re.IGNORECASE,
)
_OF_TEXT = re.compile(r"(^|_)(bos|eos|pad|unk|sep|cls|mask|stop|end|start|begin|special)_tokens?$", re.IGNORECASE)
"""Settings about tokens of text, which are not secrets although their names end in "token"."""
_SENT = ("request", "headers")
"""Settings that are sent to a server with each request. All their values are removed."""
_LOCAL = re.compile(
    r"(?<![\w:/.])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\":,;]+[/\\])+(?:[^/\\'\":,;.\n]+[/\\])*([^\s/\\'\",;]*)"
)
"""An absolute path inside a text. Only its last part is kept. Names of folders without a dot may have spaces."""
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_FILE = re.compile(r"\.(jsonl?|csv|parquet|gz|txt|py|yaml|yml|toml|jinja|gguf|safetensors)(:|$)")


def shown(value: Any, key: str = "") -> Any:
    """Return the value without private data.

    >>> shown({"train": "/home/me/data/train.jsonl", "api_key": "sk-1", "model": "Qwen/Qwen3-0.6B"})
    {'train': 'train.jsonl', 'api_key': '(removed)', 'model': 'Qwen/Qwen3-0.6B'}
    """
    if isinstance(value, Mapping):
        return {name: REMOVED if key in _SENT else shown(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner, key) for inner in value]
    if not isinstance(value, str):
        return value
    return REMOVED if _is_secret(key) else shown_text(value)


def _is_secret(key: str) -> bool:
    """
    >>> [_is_secret(key) for key in ("X-Api-Key", "hubToken", "eos_token")]
    [True, True, False]
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[-\s]", "_", key)
    return _SECRET.search(words) is not None and not _OF_TEXT.search(words)


def shown_text(text: str) -> str:
    """Return a path as its last part, a URL as its scheme, and any other text without the absolute paths in it.

    >>> shown_text("../rewards.py:brevity"), shown_text("http://10.0.0.1:8000/v1"), shown_text("and/or not")
    ('rewards.py:brevity', 'http://(removed)', 'and/or not')
    """
    if "://" in text and not any(letter.isspace() for letter in text):
        return f"{urlsplit(text).scheme}://{REMOVED}"
    if is_path(text):
        return re.split(r"[/\\]", text.rstrip("/\\"))[-1]
    return redact(_LOCAL.sub(lambda found: found[1] or "…", text)).replace(REDACTED, REMOVED)


def is_path(text: str) -> bool:
    """Does a text name something on this machine, and not on the Hub?"""
    if "\n" in text or not re.search(r"[/\\]", text):
        return False
    if any(letter.isspace() for letter in text):  # a folder with a space in its name, or a sentence
        whole = re.match(r"(~|\.\.?|[A-Za-z]:)?[/\\]", text) or _FILE.search(text) or Path(text).exists()
        return bool(whole) and not re.search(r"[,;!?]\s|\.\s", text)
    if text.startswith(("/", ".", "~")) or "\\" in text or text.count("/") > 1 or _FILE.search(text):
        return True
    return not _HUB_NAME.fullmatch(text) or Path(text).exists()
