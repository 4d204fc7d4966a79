"""Where results are kept that another run can use again."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path


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
