"""Where results are kept that another run can use again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder `name` inside of POSTTRAIN_CACHE, or of posttrain in the user's cache folder. It may not exist yet."""
    home = os.environ.get("POSTTRAIN_CACHE")
    if home:
        return Path(home).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain" / name
