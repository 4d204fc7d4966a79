"""Where results are kept that another run can use again, and the keys of what any of them may depend on."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any


def cache_folder(name: str) -> Path:
    """The folder `name` inside of POSTTRAIN_CACHE, or of posttrain in the user's cache folder. It may not exist yet."""
    home = os.environ.get("POSTTRAIN_CACHE")
    if home:
        return Path(home).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain" / name


@cache
def code_key(*modules: str, root: Path = Path(__file__).parent) -> str:
    """Hash of modules of posttrain, by patterns below its folder: what they compute is kept for as long as they stay.

    >>> code_key("models/*.py") == code_key("models/load.py")
    False
    """
    digest = hashlib.sha256()
    for pattern in modules:
        for file in sorted(root.glob(pattern)):
            digest.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()


def tokenizer_key(tokenizer: Any) -> list[Any]:
    """How a tokenizer of transformers turns texts into ids and back, as JSON."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    known = [type(tokenizer).__qualname__, tokenizer.special_tokens_map, tokenizer.chat_template]
    return [hashlib.sha256(content.encode()).hexdigest(), *known]
