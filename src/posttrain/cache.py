"""The cache of results that later runs can reuse, and the keys for the code and tokenizers that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any


def cache_folder(name: str) -> Path:
    """The folder `name` in POSTTRAIN_CACHE, or else in `posttrain` in the user's cache folder. It may not exist yet."""
    home = os.environ.get("POSTTRAIN_CACHE")
    if home:
        return Path(home).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain" / name


@cache
def code_key(*modules: str, root: Path = Path(__file__).parent) -> str:
    """A hash of modules of posttrain, named by patterns below its folder. Cached results are valid while it is equal.

    >>> code_key("models/*.py") == code_key("models/load.py")
    False
    """
    digest = hashlib.sha256()
    for pattern in modules:
        for file in sorted(root.glob(pattern)):
            digest.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()


def tokenizer_key(tokenizer: Any) -> list[Any]:
    """Everything that determines how a transformers tokenizer encodes and decodes text, as JSON."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    known = [type(tokenizer).__qualname__, tokenizer.special_tokens_map, tokenizer.chat_template]
    return [hashlib.sha256(content.encode()).hexdigest(), *known]
