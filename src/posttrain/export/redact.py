"""A run's settings as they may be shown to anyone: folders of a machine become names, secrets go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REMOVED = "(removed)"
_SECRET = re.compile(r"(^|_)(api_?key|secret|password|passwd|credentials?|authorization|token)$", re.IGNORECASE)
_LOCAL = re.compile(r"(?<![\w:/.])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\":,;]+[/\\])+([^\s/\\'\",;]*)")
"""An absolute path inside of a text; its last part is kept."""
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_FILE = re.compile(r"\.(jsonl?|csv|parquet|gz|txt|py|yaml|yml|toml|jinja|gguf|safetensors)(:|$)")


def shown(value: Any, key: str = "") -> Any:
    """The value without what is nobody's business.

    >>> shown({"train": "/home/me/data/train.jsonl", "api_key": "sk-1", "model": "Qwen/Qwen3-0.6B"})
    {'train': 'train.jsonl', 'api_key': '(removed)', 'model': 'Qwen/Qwen3-0.6B'}
    """
    if isinstance(value, Mapping):
        return {name: shown(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner, key) for inner in value]
    if not isinstance(value, str):
        return value
    return REMOVED if _SECRET.search(key) else shown_text(value)


def shown_text(text: str) -> str:
    """Paths as their last part, addresses as their scheme; other text but for absolute paths as it is.

    >>> shown_text("../rewards.py:brevity"), shown_text("http://10.0.0.1:8000/v1"), shown_text("and/or not")
    ('rewards.py:brevity', 'http://(removed)', 'and/or not')
    """
    if "://" in text and not any(letter.isspace() for letter in text):
        return f"{urlsplit(text).scheme}://{REMOVED}"
    if is_path(text):
        return re.split(r"[/\\]", text.rstrip("/\\"))[-1]
    return _LOCAL.sub(lambda found: found[1] or "…", text)


def is_path(text: str) -> bool:
    """Whether a text names something on this machine, rather than on the Hub."""
    if any(letter.isspace() for letter in text) or not re.search(r"[/\\]", text):
        return False
    if text.startswith(("/", ".", "~")) or "\\" in text or text.count("/") > 1 or _FILE.search(text):
        return True
    return not _HUB_NAME.fullmatch(text) or Path(text).exists()
